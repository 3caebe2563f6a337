/* Moves a child, deaf to SIGTERM, out of the cgroup it was put into, to the one above.
 * leaves_cgroup child      the leader's child does so
 * leaves_cgroup daemon     a daemonised one does so */
#include "agent.h"
#include <limits.h>
#include <mntent.h>

/* The path of this process's cgroup below the mount. */
static int own_cgroup(char *path, size_t size) {
	char line[PATH_MAX];
	FILE *file = fopen("/proc/self/cgroup", "re");
	int found = 0;
	while (file != NULL && fgets(line, sizeof line, file) != NULL) {
		if (strncmp(line, "0::", 3) == 0) {
			line[strcspn(line, "\n")] = 0;
			snprintf(path, size, "%s", line + 3);
			found = 1;
		}
	}
	if (file != NULL)
		fclose(file);
	return found;
}

static void move_up(void) {
	char own[PATH_MAX], procs[3 * PATH_MAX];
	if (!own_cgroup(own, sizeof own))
		_exit(98);
	*strrchr(own, '/') = 0;
	FILE *mounts = setmntent("/proc/self/mounts", "re");
	struct mntent *mount;
	while ((mount = getmntent(mounts)) != NULL) {
		if (strcmp(mount->mnt_type, "cgroup2") != 0)
			continue;
		snprintf(procs, sizeof procs, "%s%s/cgroup.procs", mount->mnt_dir, own);
		int fd = open(procs, O_WRONLY | O_CLOEXEC);
		if (fd < 0 || write(fd, "0", 1) != 1)
			tell("failed to move to %.200s: %s", procs, strerror(errno));
		close(fd);
	}
	endmntent(mounts);
	own_cgroup(own, sizeof own);
	tell("moved to %.200s", own);
}

int main(int argc, char **argv) {
	if (argc != 2)
		return 98;
	if (fork() == 0) {
		signal(SIGTERM, SIG_IGN);
		setsid();
		if (strcmp(argv[1], "daemon") == 0 && fork() != 0)
			_exit(0);
		move_up();
		sleep_for_ever();
	}
	sleep_for_ever();
}
