/* Kills its own keeper, and runs on with a daemonised child. Deaf to SIGHUP and SIGTERM.
 * kills_keeper [CODE]      with a code, exits with it once the keeper is gone */
#include "agent.h"

int main(int argc, char **argv) {
	signal(SIGHUP, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	pid_t keeper = getppid();
	int ready[2];
	char byte;
	if (pipe(ready) != 0)
		return 98;
	if (fork() == 0) {
		setsid();
		if (fork() != 0)
			_exit(0);
		tell("daemon %d", getpid());
		close(ready[0]);
		close(ready[1]);
		sleep_for_ever();
	}
	close(ready[1]);
	while (read(ready[0], &byte, 1) < 0 && errno == EINTR)
		;
	/* The test is still being told of the start: let it say when. */
	while (access(getenv("GO"), F_OK) != 0)
		sleep_ms(1);
	kill(keeper, SIGKILL);
	while (getppid() == keeper)
		sleep_ms(1);
	tell("orphan %d", getpid());
	if (argc > 1)
		return atoi(argv[1]);
	sleep_for_ever();
}
