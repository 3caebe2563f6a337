/* One child traces the other, holds it in a stop and never lets go; both deaf to SIGTERM. */
#include "agent.h"
#include <sys/prctl.h>
#include <sys/ptrace.h>

int main(void) {
	signal(SIGTERM, SIG_IGN);
	pid_t traced = fork();
	if (traced == 0) {
		prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
		setsid();
		sleep_for_ever();
	}
	if (fork() == 0) {
		setsid();
		/* The other may not have allowed it yet. */
		for (int tries = 0; ptrace(PTRACE_SEIZE, traced, 0, 0) != 0; tries++) {
			if (tries == 1000) {
				tell("cannot trace: %s", strerror(errno));
				_exit(98);
			}
			sleep_ms(2);
		}
		ptrace(PTRACE_INTERRUPT, traced, 0, 0);
		while (waitpid(traced, NULL, __WALL) != traced && errno == EINTR)
			;
		tell("traces %d", traced);
		sleep_for_ever();
	}
	sleep_for_ever();
}
