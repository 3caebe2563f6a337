"""Many short runs handed over at once, until each is known to have ended."""

import os
import shutil
import sqlite3
import sys
import time

from table import Table, quantile

ROUNDS = 5


def measure(world, path, peers, jobs):
    true = [shutil.which("true")]
    names = [f"job-{n}" for n in range(jobs)]
    took = {kind: [] for kind in peers}
    floors = {synchronous: [] for synchronous in ("FULL", "none")}
    running = {}
    for kind in peers:
        peer = running[kind] = kind(world, path)
        peer.declare({name: true for name in names})
        peer.up()
    for turn in range(ROUNDS):
        print(f"compare: throughput, round {turn + 1} of {ROUNDS}", file=sys.stderr)
        for synchronous in floors:
            floors[synchronous].append(timed(lambda: floor(world, turn, true, jobs, synchronous)))
        for kind, peer in running.items():
            took[kind].append(timed(lambda: peer.burst(names)))
            peer.clear(names)
    return report(running, took, floors, jobs)


def timed(work):
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def floor(world, turn, argv, jobs, synchronous):
    """One after the other: the start made durable, the spawn, the wait, the end made durable."""
    if synchronous == "none":
        for _ in range(jobs):
            os.waitpid(os.posix_spawn(argv[0], argv, {}), 0)
        return
    store = sqlite3.connect(world.root / f"floor-{turn}.db", isolation_level=None)
    store.execute("pragma journal_mode = wal")
    store.execute(f"pragma synchronous = {synchronous}")
    store.execute("create table runs (id integer primary key, status integer)")
    for n in range(jobs):
        store.execute("insert into runs values (?, null)", (n,))
        _, status = os.waitpid(os.posix_spawn(argv[0], argv, {}), 0)
        store.execute("update runs set status = ? where id = ?", (status, n))
    store.close()


def report(running, took, floors, jobs):
    table = Table(
        f"throughput: {jobs} x true, runs a second (median, lowest and highest of {ROUNDS} rounds)",
        ["peer", "version", "handed over by", "a second", "low - high", "/ kennel's",
         "durable record of ends"],
    )
    kennel = jobs / quantile(list(took.values())[-1], 50)
    loop = "a Python loop, one by one"
    bare = cells(floors["none"], jobs, kennel)
    kept = cells(floors["FULL"], jobs, kennel)
    table.row(["spawn, wait", "", loop, *bare, "none"])
    table.row(["spawn, wait, SQLite FULL at start and end", "", loop, *kept, "yes, synced"])
    for kind, peer in running.items():
        figures = cells(took[kind], jobs, kennel)
        table.row([peer.name, peer.version(), peer.burst_way, *figures, peer.keeps])
    return table


def cells(times, jobs, kennel):
    middle = jobs / quantile(times, 50)
    spread = f"{jobs / max(times):.0f} - {jobs / min(times):.0f}"
    return [f"{middle:.0f}", spread, f"{middle / kennel:.2f}"]
