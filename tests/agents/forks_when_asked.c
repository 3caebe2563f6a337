/* Answers SIGTERM by forking more of itself, in sessions of their own, up to 64 in all. */
#include "agent.h"
#include <sys/mman.h>

static int *made;

static void on_term(int signal) {
	(void)signal;
	for (int n = 0; n < 3; n++) {
		if (__atomic_fetch_add(made, 1, __ATOMIC_RELAXED) < 64 && fork() == 0) {
			setsid();
			tell("forked %d", getpid());
			kill(getpid(), SIGTERM);
			return;
		}
	}
}

int main(void) {
	made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	signal(SIGTERM, on_term);
	tell("ready %d", getpid());
	sleep_for_ever();
}
