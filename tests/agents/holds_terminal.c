/* Leaves a child behind as nohup and disown do: deaf to SIGHUP, in a background group of the same
 * session, holding the streams or the terminal. With an argument the leader exits with that code. */
#include "agent.h"

int main(int argc, char **argv) {
	int ready[2];
	char byte;
	if (pipe(ready) != 0)
		return 98;
	if (fork() == 0) {
		signal(SIGHUP, SIG_IGN);
		setpgid(0, 0);
		tell("child %d", getpid());
		close(ready[0]);
		close(ready[1]);
		sleep_for_ever();
	}
	close(ready[1]);
	while (read(ready[0], &byte, 1) < 0 && errno == EINTR)
		;
	tell("ready %d", getpid());
	if (argc > 1)
		return atoi(argv[1]);
	sleep_for_ever();
}
