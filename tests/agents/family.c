/* A family of strangers: a parent, two children, and a grandchild; deaf to SIGTERM if told so.
 * family gentle|deaf */
#include "agent.h"

int main(int argc, char **argv) {
	if (argc > 1 && strcmp(argv[1], "deaf") == 0)
		signal(SIGTERM, SIG_IGN);
	for (int n = 0; n < 2; n++) {
		if (fork() == 0) {
			if (n == 0 && fork() == 0) {
				setsid();
				tell("member %d", getpid());
				sleep_for_ever();
			}
			tell("member %d", getpid());
			sleep_for_ever();
		}
	}
	tell("member %d", getpid());
	sleep_for_ever();
}
