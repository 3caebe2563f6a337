/* Stops itself (SIGSTOP) and so handles nothing, until somebody says SIGCONT. On SIGTERM it leaves
 * with 7. */
#include "agent.h"

static void on_term(int signal) {
	(void)signal;
	tell("asked");
	_exit(7);
}

int main(void) {
	signal(SIGTERM, on_term);
	tell("ready %d", getpid());
	raise(SIGSTOP);
	tell("goes on");
	sleep_for_ever();
}
