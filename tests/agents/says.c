/* Says one line to the truth file and leaves: a step of a script.
 * says TEXT */
#include "agent.h"

int main(int argc, char **argv) {
	tell("%s", argc > 1 ? argv[1] : "");
	return 0;
}
