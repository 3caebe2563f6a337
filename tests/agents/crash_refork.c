/* Keeps a child that is never the same process twice: each lives a few milliseconds in a session of its
 * own, forks the next one and leaves. Ends by itself after some seconds, whoever forgets it. */
#include "agent.h"

int main(void) {
	if (fork() == 0) {
		for (int hop = 0; hop < 1000; hop++) {
			pid_t next = fork();
			if (next != 0)
				_exit(0);
			setsid();
			sleep_ms(5);
		}
		_exit(0);
	}
	tell("ready %d", getpid());
	sleep_for_ever();
}
