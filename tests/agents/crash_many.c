/* Has as many children as its argument says, each in a session of its own and deaf to SIGTERM. */
#include "agent.h"

int main(int argc, char **argv) {
	int many = argc > 1 ? atoi(argv[1]) : 10;
	for (int n = 0; n < many; n++) {
		if (fork() == 0) {
			setsid();
			signal(SIGTERM, SIG_IGN);
			sleep_for_ever();
		}
	}
	tell("ready %d", getpid());
	sleep_for_ever();
}
