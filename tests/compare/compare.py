#!/usr/bin/env python3
"""Compares kennel with other supervisors, all in one run, and prints Markdown tables.

    tests/compare/compare.py --peers DIR --kennel target/release/kennel [start|throughput|crash ...]

DIR is where the peers are installed, if they are not there yet. Everything else happens in one
temporary directory with private homes, and nothing of it is left.
"""

import argparse
import signal
import sys
from pathlib import Path

# A checkout stays as it was.
sys.dont_write_bytecode = True

import measure_crash
import measure_start
import measure_throughput
import peers
from install import install
from world import World

# Who crashes, how: the jobs of a file either start with the daemon, its default, or on request.
CRASHES = [
    (peers.Tmux, "", False),
    (peers.TaskSpooler, "", False),
    (peers.S6, "", True),
    (peers.S6Keeper, "", True),
    (peers.Supervisord, "autostart", True),
    (peers.Supervisord, "started by hand", False),
    (peers.Circus, "autostart", True),
    (peers.Circus, "started by hand", False),
    (peers.Pm2, "save, resurrect", False),
    (peers.Pueue, "", False),
    (peers.KennelKeeper, "", False),
    (peers.Kennel, "", False),
]


def main():
    args = arguments()
    peers.Kennel.binary = args.kennel.resolve(strict=True)
    path = install(args.peers.resolve())
    # So that an interrupted comparison cleans up as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = lambda kind: not args.only or kind.name in args.only.split(",")
    kinds = [kind for kind in peers.PEERS if chosen(kind)]
    crashes = [case for case in CRASHES if chosen(case[0])]
    measures = {
        "start": lambda world: measure_start.measure(world, path, kinds, args.starts),
        "throughput": lambda world: measure_throughput.measure(world, path, kinds, args.jobs),
        "crash": lambda world: measure_crash.measure(world, path, crashes),
    }
    for name in args.measure or measures:
        world = World()
        try:
            print(measures[name](world), flush=True)
        finally:
            world.close()


def arguments():
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--peers", type=Path, required=True, metavar="DIR")
    parser.add_argument("--kennel", type=Path, required=True, metavar="FILE")
    parser.add_argument("--starts", type=int, default=100, metavar="N")
    parser.add_argument("--jobs", type=int, default=200, metavar="N")
    parser.add_argument("--only", metavar="NAMES", help="with commas; the last is the measure")
    parser.add_argument("measure", nargs="*", metavar="start|throughput|crash")
    args = parser.parse_args()
    unknown = set(args.measure) - {"start", "throughput", "crash"}
    if unknown:
        parser.error(f"no such measurement: {', '.join(unknown)}")
    return args


if __name__ == "__main__":
    main()
