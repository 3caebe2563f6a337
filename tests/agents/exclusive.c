/* Takes an exclusive lock on a file in its worktree, and screams if somebody else has it: two of
 * them alive at once is the bug kennel exists to remove. Usage: exclusive LOCK TRUTH */
#include "agent.h"
#include <sys/file.h>

int main(int argc, char **argv) {
	if (argc < 3)
		return 2;
	int truth = open(argv[2], O_WRONLY | O_CREAT | O_APPEND, 0600);
	int lock = open(argv[1], O_RDWR | O_CREAT, 0600);
	if (truth < 0 || lock < 0)
		return 2;
	if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
		dprintf(truth, "held %d\n", getpid());
		return 99;
	}
	dprintf(truth, "alone %d\n", getpid());
	for (;;)
		pause();
}
