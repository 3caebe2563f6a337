/* Works for a few milliseconds and leaves by itself with 7. */
#include "agent.h"

int main(void) {
	tell("ready %d", getpid());
	sleep_ms(5);
	tell("exit 7");
	return 7;
}
