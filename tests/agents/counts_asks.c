/* Says each time it is asked to end, and does not. Has a child in its group, forked by a thread that is
 * not the main one, and a child in a session of its own. */
#include "agent.h"
#include <pthread.h>

static const char *name = "leader";

static void on_term(int signal) {
	(void)signal;
	tell("asked %s", name);
}

static void become(const char *who) {
	if (fork() == 0) {
		name = who;
		if (strcmp(who, "stranger") == 0)
			setsid();
		tell("here %s", name);
		sleep_for_ever();
	}
}

static void *fork_from_here(void *unused) {
	become("member");
	sleep_for_ever();
	return unused;
}

int main(void) {
	pthread_t thread;
	signal(SIGTERM, on_term);
	become("stranger");
	if (pthread_create(&thread, NULL, fork_from_here, NULL) != 0)
		return 98;
	tell("here %s", name);
	sleep_for_ever();
}
