/* Exits at once with the code it is told. Gone before anybody can look.
 * exits_with CODE */
#include "agent.h"

int main(int argc, char **argv) {
	_exit(argc > 1 ? atoi(argv[1]) : 0);
}
