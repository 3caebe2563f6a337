/* Is a cohort of N: forks N-1 children that sleep, and sleeps. For the bench. */
#include "agent.h"

int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 1;
	for (int i = 1; i < n; i++)
		if (fork() == 0)
			sleep_for_ever();
	tell("ready");
	sleep_for_ever();
}
