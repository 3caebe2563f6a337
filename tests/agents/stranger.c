/* A bystander that leads a session and a group of its own. */
#include "agent.h"

int main(void) {
	setsid();
	tell("stranger %d", getpid());
	sleep_for_ever();
}
