/* Does nothing, for ever. Whoever kills it has hurt an innocent. */
#include "agent.h"

int main(void) {
	sleep_for_ever();
}
