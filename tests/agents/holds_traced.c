/* Traces a process that is not its own and never lets go of it, also when it is dead. */
#include "agent.h"
#include <sys/ptrace.h>

int main(int argc, char **argv) {
	pid_t pid = argc > 1 ? atoi(argv[1]) : 0;
	long held = ptrace(PTRACE_SEIZE, pid, 0, 0);
	tell("holds %ld", held);
	sleep_for_ever();
}
