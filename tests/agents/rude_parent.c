/* Not an agent: a launcher that ignores and blocks every signal, leaves descriptors open, and becomes
 * the program it is told. What it passes on must not reach a run.
 * rude_parent all|all-but-chld PROGRAM ARG... */
#include "agent.h"
#include <sys/syscall.h>

/* As the kernel has it; the C library hides two signals from its own callers. */
struct action {
	void (*handler)(int);
	unsigned long flags;
	void (*restorer)(void);
	unsigned long mask;
};

int main(int argc, char **argv) {
	if (argc < 3)
		return 98;
	struct action ignore = {.handler = SIG_IGN};
	for (int n = 1; n < 65; n++)
		if (n != SIGCHLD || strcmp(argv[1], "all") == 0)
			syscall(SYS_rt_sigaction, n, &ignore, NULL, sizeof ignore.mask);
	for (int fd = 10; fd < 20; fd++)
		if (open("/dev/null", O_RDONLY) < 0)
			return 97;
	unsigned long all = ~0UL;
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, sizeof all);
	execv(argv[2], argv + 2);
	return 96;
}
