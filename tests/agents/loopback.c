/* Runs a program in a network of its own that has nothing but the loopback device: whatever the
 * program wants to reach outside, it cannot. Needs root, or user namespaces. Exits with 96 and a
 * reason if that cannot be had. */
#include "agent.h"
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

static int cannot(const char *what) {
	fprintf(stderr, "cannot %s: %s\n", what, strerror(errno));
	return 96;
}

static int write_file(const char *path, const char *text) {
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t length = (ssize_t)strlen(text), written = write(fd, text, length);
	close(fd);
	return written == length ? 0 : -1;
}

/* Root of a user namespace may make the network too. */
static int become_root(void) {
	char uid_map[64], gid_map[64];
	snprintf(uid_map, sizeof uid_map, "0 %d 1", (int)getuid());
	snprintf(gid_map, sizeof gid_map, "0 %d 1", (int)getgid());
	if (unshare(CLONE_NEWUSER) != 0)
		return -1;
	if (write_file("/proc/self/setgroups", "deny") != 0)
		return -1;
	return write_file("/proc/self/uid_map", uid_map) | write_file("/proc/self/gid_map", gid_map);
}

int main(int argc, char **argv) {
	if (argc < 2)
		return 97;
	if (geteuid() != 0 && become_root() != 0)
		return cannot("make a user namespace");
	if (unshare(CLONE_NEWNET) != 0)
		return cannot("make a network namespace");
	struct ifreq request = {0};
	strcpy(request.ifr_name, "lo");
	int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (any < 0 || ioctl(any, SIOCGIFFLAGS, &request) != 0)
		return cannot("find the loopback device");
	request.ifr_flags |= IFF_UP;
	if (ioctl(any, SIOCSIFFLAGS, &request) != 0)
		return cannot("open the loopback device");
	close(any);
	execv(argv[1], argv + 1);
	return cannot(argv[1]);
}
