/* Reaches a limit and says how long it took until somebody asked it to leave. For the bench.
 * bench_limit line|file|quiet FILE [anything]
 * line: says one tool-using response; file: writes one to FILE, where a client keeps its transcript;
 * quiet: does both and then nothing. */
#include "agent.h"

/* Long enough for whoever follows us to have come to rest. */
#define REST_US 30000

#define RESPONSE                                                                                   \
	"{\"type\":\"assistant\",\"requestId\":\"qx\",\"message\":{\"id\":\"mx\","                   \
	"\"model\":\"claude-sonnet-5\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t1\","             \
	"\"name\":\"Bash\",\"input\":{}}],"                                                            \
	"\"usage\":{\"input_tokens\":1000,\"output_tokens\":100}}}\n"

static long long begun;

static long long now(void) {
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (long long)time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void end(int signal) {
	(void)signal;
	tell("%lld", now() - begun);
	_exit(0);
}

static void put(int fd) {
	if (write(fd, RESPONSE, sizeof RESPONSE - 1) != (ssize_t)sizeof RESPONSE - 1)
		_exit(97);
}

int main(int argc, char **argv) {
	/* Flags of the client that we stand for may come first, each with a value. */
	for (; argc > 2 && strncmp(argv[1], "--", 2) == 0; argc -= 2)
		argv += 2;
	if (argc < 3)
		return 98;
	const char *mode = argv[1];
	signal(SIGTERM, end);
	int line = strcmp(mode, "line") == 0;
	int fd = line ? 1 : open(argv[2], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (fd < 0)
		return 97;
	if (strcmp(mode, "quiet") == 0)
		put(1);
	usleep(REST_US);
	begun = now();
	put(fd);
	sleep_for_ever();
}
