/* Has a child that becomes another user, deaf to SIGTERM, in a session of its own. Needs root. */
#include "agent.h"

int main(void) {
	if (fork() == 0) {
		signal(SIGTERM, SIG_IGN);
		setsid();
		/* The truth file is root's: told before, true after. */
		tell("other %d", getpid());
		if (setgid(65534) != 0 || setuid(65534) != 0)
			_exit(98);
		sleep_for_ever();
	}
	tell("ready %d", getpid());
	sleep_for_ever();
}
