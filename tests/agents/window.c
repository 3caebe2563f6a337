/* Tells the size of its terminal, and again whenever it is told of a change; says which signal it was. */
#include "agent.h"
#include <sys/ioctl.h>

static void show(int signal) {
	struct winsize size;
	if (ioctl(0, TIOCGWINSZ, &size) != 0)
		tell("no terminal");
	else
		tell("signal %d size %dx%d", signal, size.ws_row, size.ws_col);
}

int main(void) {
	signal(SIGWINCH, show);
	show(0);
	sleep_for_ever();
}
