/* The command every supervisor is given. It notes for itself what happened, so that what is said of
 * it can be compared with that.
 *
 *   agent request FILE COMMAND...   notes the time in FILE, that of the request; becomes COMMAND
 *   agent stamp FIFO                sends the time of its first instruction, and leaves
 *   agent chatty TRUTH              a line to stdout and to TRUTH every 50 ms
 *   agent quiet TRUTH               sleeps
 *   agent family TRUTH              sleeps, beside a child and a child in a session of its own
 *
 * The last three exit with 7 once the file TRUTH.end.PID is there. Lines of TRUTH: "start PID
 * PARENT", "child PID", "session PID", "line PID N", "refused PID N" (stdout did not take line N),
 * "exit PID". */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TICK_US 50000
#define ENDING 7

static const char *truth;

static void put(const char *path, int flags, const char *line) {
	int fd = open(path, O_WRONLY | O_CLOEXEC | flags, 0644);
	size_t length = strlen(line);
	if (fd < 0 || write(fd, line, length) != (ssize_t)length)
		_exit(99);
	close(fd);
}

static void tell(const char *format, ...) {
	char line[128];
	va_list args;
	va_start(args, format);
	vsnprintf(line, sizeof line, format, args);
	va_end(args);
	put(truth, O_CREAT | O_APPEND, line);
}

static void put_time(const char *path, int flags) {
	struct timespec now;
	char line[32];
	clock_gettime(CLOCK_MONOTONIC, &now);
	snprintf(line, sizeof line, "%lld%09ld\n", (long long)now.tv_sec, now.tv_nsec);
	put(path, flags, line);
}

static void leave_if_told(void) {
	char path[512];
	snprintf(path, sizeof path, "%s.end.%d", truth, (int)getpid());
	if (access(path, F_OK) == 0) {
		tell("exit %d\n", (int)getpid());
		_exit(ENDING);
	}
}

/* The truth comes first: a line that killed its writer was still meant to be kept. */
static void speak(long n) {
	char line[64];
	int length = snprintf(line, sizeof line, "line %d %ld\n", (int)getpid(), n);
	tell("%s", line);
	if (write(1, line, length) != length)
		tell("refused %d %ld\n", (int)getpid(), n);
}

static void fork_sleeper(const char *kind) {
	if (fork() != 0)
		return;
	if (strcmp(kind, "session") == 0)
		setsid();
	tell("%s %d\n", kind, (int)getpid());
	for (;;)
		pause();
}

int main(int argc, char **argv) {
	if (argc == 3 && strcmp(argv[1], "stamp") == 0) {
		put_time(argv[2], 0);
		return 0;
	}
	if (argc > 3 && strcmp(argv[1], "request") == 0) {
		put_time(argv[2], O_CREAT | O_TRUNC);
		execv(argv[3], argv + 3);
		return 127;
	}
	if (argc != 3)
		return 64;
	truth = argv[2];
	tell("start %d %d\n", (int)getpid(), (int)getppid());
	if (strcmp(argv[1], "family") == 0) {
		fork_sleeper("child");
		fork_sleeper("session");
	}
	for (long n = 1;; n++) {
		if (strcmp(argv[1], "chatty") == 0)
			speak(n);
		leave_if_told();
		usleep(TICK_US);
	}
}
