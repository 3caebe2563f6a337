"""Speaks to circus with its own client: a watcher's name in, the time of asking out."""

import sys
import time

from circus.client import CircusClient

client = CircusClient(endpoint=sys.argv[1], timeout=30)
for line in sys.stdin:
    asked = time.monotonic_ns()
    # Waiting, or a watcher that has not begun could not be told from one that has ended.
    order = {"command": "start", "properties": {"name": line.strip(), "waiting": True}}
    answer = client.call(order)
    if answer["status"] != "ok":
        raise SystemExit(str(answer))
    print(asked, flush=True)
