/* Takes memory in small bites and keeps it. Usage: eats MEGABYTES */
#include "agent.h"

int main(int argc, char **argv) {
	int megabytes = argc > 1 ? atoi(argv[1]) : 1;
	tell("ready %d", getpid());
	for (int n = 0; n < megabytes; n++) {
		char *bite = malloc(1 << 20);
		if (bite == NULL)
			return 1;
		memset(bite, n + 1, 1 << 20);
		sleep_ms(2);
	}
	sleep_for_ever();
}
