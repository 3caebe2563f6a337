/* A fork storm: every process forks as fast as it can, in sessions of their own, all deaf to SIGTERM,
 * up to COUNT in all. Tells "storm" when the half of them is there.
 * storm COUNT */
#include "agent.h"
#include <sys/mman.h>

int main(int argc, char **argv) {
	if (argc != 2)
		return 98;
	int most = atoi(argv[1]);
	int *made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	signal(SIGTERM, SIG_IGN);
	*made = 1;
	for (;;) {
		int number = __atomic_fetch_add(made, 1, __ATOMIC_RELAXED);
		if (number >= most)
			sleep_for_ever();
		if (number == most / 2)
			tell("storm");
		if (fork() == 0)
			setsid();
	}
}
