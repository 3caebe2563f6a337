/* Connects to a local socket, in a way that makes it hard to say whose it is.
 * connects PATH plain      the leader does so
 * connects PATH daemon     a daemonised one does so, whose parents are gone
 * connects PATH deep       one does so that has parents in plenty, each of which leaves when asked
 * connects PATH handed     one does so that leaves at once, and another keeps the connection
 * connects PATH forgets    a daemonised one does so that was exec'd without the cookie */
#include "agent.h"
#include <sys/socket.h>
#include <sys/un.h>

static int connected(const char *path) {
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
		tell("failed to connect to %.100s: %s", path, strerror(errno));
		_exit(98);
	}
	return fd;
}

static void connect_and_stay(const char *path) {
	connected(path);
	tell("connected %d", getpid());
	sleep_for_ever();
}

static void daemonise(void) {
	if (fork() != 0)
		_exit(0);
	setsid();
	if (fork() != 0)
		_exit(0);
}

int main(int argc, char **argv) {
	if (argc != 3)
		return 98;
	const char *how = argv[2];
	if (strcmp(how, "plain") == 0)
		connect_and_stay(argv[1]);
	if (fork() == 0) {
		if (strcmp(how, "daemon") == 0) {
			daemonise();
		} else if (strcmp(how, "deep") == 0) {
			for (int n = 0; n < 200; n++)
				if (fork() != 0)
					sleep_for_ever();
		} else if (strcmp(how, "handed") == 0) {
			int fd = connected(argv[1]);
			if (fork() == 0) {
				tell("handed %d", fd);
				sleep_for_ever();
			}
			_exit(0);
		} else if (strcmp(how, "forgets") == 0) {
			daemonise();
			char *again[] = {argv[0], argv[1], "plain", NULL};
			unsetenv("KENNEL_RUN");
			execv("/proc/self/exe", again);
			_exit(98);
		}
		connect_and_stay(argv[1]);
	}
	while (wait(NULL) > 0 || errno == EINTR)
		;
	sleep_for_ever();
}
