/* Makes its own cgroup a threaded one, in which cgroup.kill does nothing. The directory is told by a
 * file named leaf in the working directory. */
#include "agent.h"

static int put(const char *dir, const char *name, const char *text) {
	char path[4096];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t n = write(fd, text, strlen(text));
	close(fd);
	return n < 0 ? -1 : 0;
}

int main(void) {
	char leaf[2048];
	ssize_t n = 0;
	tell("ready %d", getpid());
	while (n <= 0) {
		int fd = open("leaf", O_RDONLY | O_CLOEXEC);
		if (fd >= 0) {
			n = read(fd, leaf, sizeof leaf - 1);
			close(fd);
		}
		sleep_ms(1);
	}
	leaf[n] = 0;
	char parent[4096];
	snprintf(parent, sizeof parent, "%s/..", leaf);
	int out = put(parent, "cgroup.procs", "0");
	int turned = put(leaf, "cgroup.type", "threaded");
	int back = put(leaf, "cgroup.procs", "0");
	tell("threaded %d %d %d", out, turned, back);
	sleep_for_ever();
}
