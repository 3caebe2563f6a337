/* Changes its number every 100 microseconds: forks, and the parent leaves. No list of processes ever
 * names one that is still there when it is read.
 * hopper COUNT group|session       with "session" each hop starts a session of its own */
#include "agent.h"

/* Ends by itself after this long, so that a test that fails leaves nothing behind for ever. */
#define LIFETIME_S 120

static void hop(int own_session) {
	struct timespec now, end;
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += LIFETIME_S;
	for (;;) {
		pid_t pid = fork();
		if (pid > 0)
			_exit(0);
		if (pid == 0 && own_session)
			setsid();
		struct timespec pause = {0, 50 * 1000};
		nanosleep(&pause, NULL);
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec > end.tv_sec)
			_exit(0);
	}
}

int main(int argc, char **argv) {
	if (argc != 3)
		return 98;
	signal(SIGTERM, SIG_IGN);
	for (int n = atoi(argv[1]); n > 0; n--) {
		if (fork() == 0) {
			tell("hops %d", n);
			hop(strcmp(argv[2], "session") == 0);
		}
	}
	tell("ready %d", getpid());
	sleep_for_ever();
}
