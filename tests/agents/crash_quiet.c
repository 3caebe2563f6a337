/* Says that it is there, and sleeps. The first signal ends it. */
#include "agent.h"

int main(void) {
	tell("ready %d", getpid());
	sleep_for_ever();
}
