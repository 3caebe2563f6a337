/* Writes numbered lines of 64 bytes to standard output, and tells how many it has written when asked
 * to (SIGUSR1). With an argument it writes that many as fast as it can, then sleeps; without, one each
 * millisecond. */
#include "agent.h"

static volatile sig_atomic_t asked;

static void on_usr1(int signal) {
	(void)signal;
	asked = 1;
}

int main(int argc, char **argv) {
	long most = argc > 1 ? atol(argv[1]) : 0;
	signal(SIGUSR1, on_usr1);
	tell("ready %d", getpid());
	for (long n = 0;; n++) {
		if (most == 0)
			sleep_ms(1);
		while (most != 0 && n == most) {
			tell("wrote %ld", n);
			pause();
			if (asked) {
				asked = 0;
				most += atol(argv[1]);
			}
		}
		char line[65];
		snprintf(line, sizeof line, "%063ld\n", n);
		if (write(1, line, 64) != 64)
			return 8;
	}
}
