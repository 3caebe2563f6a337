/* A descendant makes itself a child subreaper and daemonises children of its own, so that they never
 * become the keeper's. All but the leader are deaf to SIGTERM. */
#include "agent.h"
#include <sys/prctl.h>

static void daemonise(int n) {
	if (fork() == 0) {
		setsid();
		if (fork() == 0) {
			tell("daemon %d", n);
			sleep_for_ever();
		}
		_exit(0);
	}
	while (wait(NULL) < 0 && errno == EINTR)
		;
}

int main(void) {
	if (fork() == 0) {
		signal(SIGTERM, SIG_IGN);
		if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
			_exit(98);
		setsid();
		for (int n = 0; n < 3; n++)
			daemonise(n);
		tell("ready %d", getpid());
		sleep_for_ever();
	}
	sleep_for_ever();
}
