"""From the request to the agent's first instruction."""

import subprocess
import sys
import time

from table import Table, quantile
from world import PATIENCE_S

# The peers take turns, so that a noisy minute of the machine hits all of them.
ROUNDS = 5
# Between two starts: the job before has ended and been collected.
PAUSE_S = 0.03


def measure(world, path, peers, starts):
    share = max(1, starts // ROUNDS)
    stamp = [world.agent, "stamp", world.fifo]
    running = []
    for kind in peers:
        peer = kind(world, path)
        names = [f"{how}-{n}" for how in ("cli", "api") for n in range(share * ROUNDS)]
        peer.declare({name: stamp for name in names})
        peer.up()
        running.append(peer)
    times = {(peer, how): [] for peer in running for how in ("cli", "api")}
    bare = []
    for turn in range(ROUNDS):
        print(f"compare: start, round {turn + 1} of {ROUNDS}", file=sys.stderr)
        mine = range(turn * share, (turn + 1) * share)
        bare += [by_client(world, None, stamp) for _ in mine]
        for peer in running:
            for n in mine:
                times[peer, "cli"].append(start(world, peer, f"cli-{n}", by_cli))
            if has_api(peer):
                for n in mine:
                    times[peer, "api"].append(start(world, peer, f"api-{n}", by_api))
    return report(running, times, bare, share * ROUNDS)


def has_api(peer):
    return not peer.api_way.startswith(("none", "not measured"))


def start(world, peer, name, how):
    took = how(world, peer, name)
    peer.after_start(name)
    time.sleep(PAUSE_S)
    return took


def by_cli(world, peer, name):
    return by_client(world, peer.env, peer.cli(name))


def by_client(world, env, argv):
    """The clock starts in the process that then becomes the client."""
    client = subprocess.Popen(
        [world.agent, "request", world.asked, *argv], env=env,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    world.hold(client.pid)
    stamp = world.next_stamp()
    # What it returns is not looked at: supervisorctl takes an agent that has left for a failure.
    client.wait(PATIENCE_S)
    world.release(client.pid)
    return (stamp - int(world.asked.read_text())) / 1e6


def by_api(world, peer, name):
    asked = peer.api(name)
    return (world.next_stamp() - asked) / 1e6


def report(running, times, bare, starts):
    figures = ["p50", "p95", "p50 / kennel's"]
    table = Table(
        f"start: request to the agent's first instruction, ms, {starts} starts each",
        ["peer", "version", "command", *figures, "API", *figures],
    )
    kennel = {how: quantile(times[running[-1], how], 50) for how in ("cli", "api")}
    floor = cells(bare, kennel["cli"])
    table.row(["no supervisor", "", "the agent itself", *floor, "", "", "", ""])
    for peer in running:
        cli, api = (cells(times[peer, how], kennel[how]) for how in ("cli", "api"))
        table.row([peer.name, peer.version(), peer.way, *cli, peer.api_way, *api])
    return table


def cells(times, kennel):
    if not times:
        return ["", "", ""]
    middle = quantile(times, 50)
    return [f"{middle:.1f}", f"{quantile(times, 95):.1f}", f"{middle / kennel:.2f}"]
