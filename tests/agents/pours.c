/* Pours out bytes as fast as they are taken, and exits. Byte n of the binary kind is n mod 251, of the
 * letters 'a' + n mod 26.
 * pours BYTES binary|letters [DESCRIPTOR] */
#include "agent.h"

int main(int argc, char **argv) {
	if (argc < 3)
		return 98;
	long total = atol(argv[1]);
	int binary = strcmp(argv[2], "binary") == 0;
	int fd = argc > 3 ? atoi(argv[3]) : 1;
	static char buffer[64 * 1024];
	for (long at = 0; at < total;) {
		long part = total - at < (long)sizeof buffer ? total - at : (long)sizeof buffer;
		for (long n = 0; n < part; n++)
			buffer[n] = binary ? (char)((at + n) % 251) : (char)('a' + (at + n) % 26);
		for (long done = 0; done < part;) {
			ssize_t n = write(fd, buffer + done, part - done);
			if (n < 0 && errno != EINTR)
				return 97;
			if (n > 0)
				done += n;
		}
		at += part;
	}
	tell("poured %ld", total);
	return 0;
}
