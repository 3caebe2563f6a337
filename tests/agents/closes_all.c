/* Closes every descriptor it has, its terminal too, and runs on. */
#include "agent.h"

int main(void) {
	for (int fd = 0; fd < 1024; fd++)
		close(fd);
	tell("closed %d", getpid());
	for (;;) {
		sleep_ms(20);
		tell("runs on");
	}
}
