/* Takes its time: leaves some milliseconds after SIGTERM, with an exit code of its own.
 * leaves_late CODE MILLISECONDS */
#include "agent.h"

static volatile sig_atomic_t asked;

static void on_term(int signal) {
	asked = signal;
}

int main(int argc, char **argv) {
	if (argc != 3)
		return 98;
	/* Blocked but while we wait, so that none can slip in between the look and the sleep. */
	sigset_t term, open;
	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	sigprocmask(SIG_BLOCK, &term, &open);
	signal(SIGTERM, on_term);
	tell("ready %d", getpid());
	while (!asked)
		sigsuspend(&open);
	tell("asked");
	sleep_ms(atol(argv[2]));
	tell("leaves %s", argv[1]);
	return atoi(argv[1]);
}
