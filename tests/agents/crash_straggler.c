/* Leaves by itself with 3, and leaves a child behind in its session but in a group of its own. */
#include "agent.h"

int main(void) {
	pid_t child = fork();
	if (child == 0) {
		setpgid(0, 0);
		signal(SIGHUP, SIG_IGN);
		tell("straggler %d", getpid());
		sleep_for_ever();
	}
	tell("ready %d", getpid());
	while (access("go", F_OK) != 0)
		sleep_ms(1);
	tell("exit 3");
	return 3;
}
