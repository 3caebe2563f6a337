/* A chain of processes, each the only child of the one before, each in a session of its own and deaf to
 * SIGTERM: deeper than any walk goes.
 * deep_chain LENGTH */
#include "agent.h"

int main(int argc, char **argv) {
	if (argc != 2)
		return 98;
	char left[16];
	int length = atoi(argv[1]);
	signal(SIGTERM, SIG_IGN);
	if (length == 0)
		tell("ready %d", getpid());
	else if (fork() == 0) {
		setsid();
		/* A new program each: the kernel's own work for a fork grows with a line of plain forks. */
		snprintf(left, sizeof left, "%d", length - 1);
		execl("/proc/self/exe", argv[0], left, (char *)NULL);
		_exit(97);
	}
	sleep_for_ever();
}
