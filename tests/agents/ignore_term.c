/* Ignores every signal a program can ignore. Only SIGKILL ends it. */
#include "agent.h"

int main(void) {
	signal(SIGTERM, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	tell("ready %d", getpid());
	sleep_for_ever();
}
