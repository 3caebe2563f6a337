/* The leader exits with 6 at once; its child lives on until the file $GO is there, then says so and
 * ends. */
#include "agent.h"

int main(void) {
	/* A terminal hangs up when its session leader exits. */
	signal(SIGHUP, SIG_IGN);
	if (fork() == 0) {
		tell("child %d", getpid());
		while (access(getenv("GO"), F_OK) != 0)
			sleep_ms(1);
		tell("child ends");
		_exit(9);
	}
	return 6;
}
