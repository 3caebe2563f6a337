/* Computes for ever and says nothing: not idle, however quiet. */
#include "agent.h"

int main(void) {
	tell("ready %d", getpid());
	for (volatile unsigned long n = 0;; n++)
		;
}
