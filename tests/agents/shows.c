/* Shows what it was started with.
 * shows env|args|fds|cwd|signals|ids ... */
#include "agent.h"
#include <dirent.h>

extern char **environ;

static void list(char **words) {
	for (; *words != NULL; words++) {
		fputs(*words, stdout);
		putchar(0);
	}
}

int main(int argc, char **argv) {
	const char *what = argc > 1 ? argv[1] : "";
	if (strcmp(what, "env") == 0)
		list(environ);
	if (strcmp(what, "args") == 0)
		list(argv + 2);
	if (strcmp(what, "cwd") == 0)
		printf("%s", getcwd(NULL, 0));
	if (strcmp(what, "ids") == 0)
		printf("%d %d %d", getpid() == getsid(0), getpid() == getpgrp(), getpid() == tcgetpgrp(0));
	if (strcmp(what, "fds") == 0) {
		DIR *dir = opendir("/proc/self/fd");
		struct dirent *entry;
		while ((entry = readdir(dir)) != NULL)
			if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(dir))
				printf("%s ", entry->d_name);
	}
	if (strcmp(what, "signals") == 0) {
		char line[512];
		FILE *file = fopen("/proc/self/status", "r");
		while (fgets(line, sizeof line, file) != NULL)
			if (strncmp(line, "Sig", 3) == 0 || strncmp(line, "ShdPnd", 6) == 0)
				fputs(line, stdout);
	}
	return fflush(stdout);
}
