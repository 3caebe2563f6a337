/* Goes on to its next step the moment its child is gone: COUNT processes, each in a session of its own,
 * each waiting for a child. All deaf to SIGTERM. Whoever kills a child before its parent sets the parent
 * to work.
 * next_step COUNT */
#include "agent.h"

int main(int argc, char **argv) {
	if (argc != 2)
		return 98;
	signal(SIGTERM, SIG_IGN);
	for (int n = atoi(argv[1]); n > 0; n--) {
		if (fork() != 0)
			continue;
		setsid();
		pid_t child = fork();
		if (child == 0) {
			tell("step %d", getpid());
			sleep_for_ever();
		}
		while (waitpid(child, NULL, 0) != child && errno == EINTR)
			;
		tell("next step %d", getpid());
		sleep_for_ever();
	}
	sleep_for_ever();
}
