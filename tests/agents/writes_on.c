/* Writes what it has to say, leaves a grandchild behind that holds the same stream and writes to it for
 * ever, and exits with 4.
 * writes_on BYTES */
#include "agent.h"

int main(int argc, char **argv) {
	if (argc != 2)
		return 98;
	/* Letters only, so that a terminal changes nothing. */
	for (long n = 0; n < atol(argv[1]); n++)
		putchar('a' + n % 26);
	if (fflush(stdout) != 0)
		return 97;
	signal(SIGHUP, SIG_IGN);
	if (fork() == 0) {
		setsid();
		if (fork() != 0)
			_exit(0);
		tell("writes on");
		while (write(1, "X", 1) == 1)
			;
		sleep_for_ever();
	}
	while (wait(NULL) < 0 && errno == EINTR)
		;
	return 4;
}
