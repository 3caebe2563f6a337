/* Its main thread leaves (pthread_exit) while another runs on: /proc shows a zombie, and cgroup.kill
 * passes it over. Deaf to SIGTERM.
 * headless leader         the leader is so
 * headless child          a child is so, in a session of its own
 * headless leaves CODE    the leader is so, and its last thread then exits with CODE */
#include "agent.h"
#include <pthread.h>

static int code = -1;

static void *stay(void *unused) {
	char state = 0;
	while (state != 'Z') {
		char line[512] = {0};
		int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
		if (read(fd, line, sizeof line - 1) > 0)
			state = strrchr(line, ')')[2];
		close(fd);
		sched_yield();
	}
	tell("headless %d", getpid());
	if (code >= 0)
		_exit(code);
	sleep_for_ever();
	return unused;
}

static void lose_head(void) {
	pthread_t thread;
	if (pthread_create(&thread, NULL, stay, NULL) != 0)
		_exit(98);
	pthread_exit(NULL);
}

int main(int argc, char **argv) {
	if (argc < 2)
		return 98;
	signal(SIGTERM, SIG_IGN);
	if (strcmp(argv[1], "child") == 0) {
		if (fork() == 0) {
			setsid();
			lose_head();
		}
		sleep_for_ever();
	}
	if (strcmp(argv[1], "leaves") == 0)
		code = atoi(argv[2]);
	lose_head();
}
