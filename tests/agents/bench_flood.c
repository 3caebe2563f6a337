/* Writes N megabytes to standard output as fast as they are taken. For the bench. */
#include "agent.h"

int main(int argc, char **argv) {
	static char block[65536];
	memset(block, 'x', sizeof block);
	long long left = (argc > 1 ? atoll(argv[1]) : 1) << 20;
	while (left > 0) {
		ssize_t n = write(1, block, sizeof block);
		if (n < 0)
			return 1;
		left -= n;
	}
	return 0;
}
