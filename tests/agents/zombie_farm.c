/* Has children by the thousand, which all end, and waits for none of them.
 * zombie_farm COUNT */
#include "agent.h"

int main(int argc, char **argv) {
	if (argc != 2)
		return 98;
	int closed[2];
	char byte;
	if (pipe(closed) != 0)
		return 98;
	for (int n = atoi(argv[1]); n > 0; n--) {
		pid_t pid = fork();
		if (pid == 0)
			_exit(0);
		if (pid < 0)
			return 97;
	}
	close(closed[1]);
	/* The last child that ends closes the last copy. */
	while (read(closed[0], &byte, 1) < 0 && errno == EINTR)
		;
	tell("ready %d", getpid());
	sleep_for_ever();
}
