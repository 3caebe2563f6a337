/* Daemonises as the book says: fork, setsid, fork, and the middle one leaves. The leader stays. */
#include "agent.h"

int main(void) {
	if (fork() == 0) {
		setsid();
		if (fork() == 0) {
			tell("daemon %d", getpid());
			sleep_for_ever();
		}
		_exit(0);
	}
	while (wait(NULL) < 0 && errno == EINTR)
		;
	tell("ready %d", getpid());
	sleep_for_ever();
}
