/* Writes numbered lines to both streams, then exits with a code, and says so in a file of its own:
 * what kennel reports is compared with that. Usage: chatty TRUTH LINES PAUSE_US CODE */
#include "agent.h"

int main(int argc, char **argv) {
	if (argc < 5)
		return 2;
	setenv("TRUTH", argv[1], 1);
	int lines = atoi(argv[2]), pause_us = atoi(argv[3]), code = atoi(argv[4]);
	tell("began %d", getpid());
	for (int n = 0; n < lines; n++) {
		if (dprintf(1, "out %d\n", n) < 0 || dprintf(2, "err %d\n", n) < 0)
			return 98;
		usleep(pause_us);
	}
	tell("done %d", code);
	return code;
}
