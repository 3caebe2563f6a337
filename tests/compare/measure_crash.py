"""The same crash for all: SIGKILL to the supervisor, its documented restart, and then the truth."""

import sys
import time

from table import Table
from world import Truth, comes_true, is_agent, until

# Long enough for a chatty job to have said something before, during and after.
WHILE_S = 1.5
# After its restart a supervisor may take this long to start what it means to start.
SETTLE_S = 4
# How long a stop may take: above the grace of those that ask again (supervisord waits 10 s). All of
# the family leave at the first signal, so a longer grace is not waited for.
STOP_S = 12
JOBS = ("chatty", "quiet", "family")


def measure(world, path, cases):
    table = Table(
        "crash: SIGKILL, restart, and what is true then",
        ["peer", "version", "killed", "doubled?", "lost?", "says of the quiet job", "true?",
         "output kept whole?", "exit code 7 known?", "can stop it after?"],
    )
    for kind, note, autostart in cases:
        peer = kind(world, path, autostart)
        print(f"compare: crash, {peer.name} {note}", file=sys.stderr)
        name = f"{peer.name}, {note}" if note else peer.name
        table.row([name, peer.version(), peer.killed, *crash(world, peer)])
    return table


def crash(world, peer):
    truths = {name: Truth(peer.home / f"{name}.truth") for name in JOBS}
    peer.declare({name: [world.agent, name, truths[name].path] for name in JOBS})
    peer.up()
    first = begin(peer, truths)
    time.sleep(WHILE_S)
    for pid in peer.victims():
        world.kill(pid)
    peer.reap()
    time.sleep(WHILE_S)
    peer.restart()
    time.sleep(SETTLE_S)
    alive = lambda pids: [pid for pid in pids if is_agent(pid, world.agent)]
    live = {name: alive(truths[name].pids("start")) for name in JOBS}
    claim = peer.says("quiet")
    return [
        which(lambda name: len(live[name]) > 1),
        which(lambda name: first[name] not in live[name]),
        claim.words,
        verdict(claim, live["quiet"]),
        output(world, peer, truths["chatty"], first["chatty"]),
        exit_code(world, peer, truths["quiet"], first["quiet"]),
        stop(world, peer, truths["family"], first["family"]),
    ]


def begin(peer, truths):
    """Starts the jobs, and returns the process of each."""
    if not (peer.by_file and peer.autostart):
        for name in JOBS:
            peer.launch(name)
    for truth in truths.values():
        until(lambda: truth.pids("start"), "the jobs to start")
    until(lambda: len(truths["family"].pids()) == 3, "the children to start")
    return {name: truths[name].pids("start")[0] for name in JOBS}


def which(holds):
    found = [name for name in JOBS if holds(name)]
    if len(found) == len(JOBS):
        return "**all**"
    return f"**{', '.join(found)}**" if found else "no"


def verdict(claim, live):
    """What the supervisor says, held against the processes there are."""
    if claim.state == "nothing":
        return f"it lives, unknown ({len(live)})" if live else "it is gone, and why is not known"
    if claim.state == "ended":
        return "**no**: it lives" if live else "yes"
    if claim.pid and claim.pid not in live:
        return "**no**: it is gone"
    return "yes" if len(live) == 1 else f"**half**: {len(live)} of it live"


def output(world, peer, truth, pid):
    """Whether each line that was written, before, during and after the crash, can be read now."""
    alive = is_agent(pid, world.agent)
    truth.tell_to_end(pid)
    until(lambda: not is_agent(pid, world.agent), "the chatty job to end")
    time.sleep(1)
    try:
        text, where = peer.output("chatty")
    except FileNotFoundError:
        text, where = "", "no file"
    written = truth.spoken(pid)
    found = set(text.splitlines())
    kept = sum(line in found for line in written)
    end = "" if alive else "; died in the crash"
    if kept == len(written):
        return f"yes, {kept} lines, {where}{end}"
    return f"**no**: {kept} of {len(written)} lines, {where}{end}"


def exit_code(world, peer, truth, pid):
    if not is_agent(pid, world.agent):
        claim = peer.says("quiet")
        return f"it died; says: {claim.words}"
    truth.tell_to_end(pid)
    until(lambda: not is_agent(pid, world.agent), "the quiet job to end")
    if comes_true(lambda: peer.says("quiet").code == 7, 5):
        return "yes"
    return f"**no**: says {peer.says('quiet').words}"


def stop(world, peer, truth, leader):
    """Has the supervisor stop a job, and looks who of the first instance is left."""
    family = {pid: kind for kind in ("start", "child", "session") for pid in truth.pids(kind)[:1]}
    before = [pid for pid in family if is_agent(pid, world.agent)]
    left = lambda: [pid for pid in before if is_agent(pid, world.agent)]
    begun = time.monotonic()
    peer.stop("family")
    gone = comes_true(lambda: not left(), STOP_S if leader in before else 2)
    if not before:
        return "nothing was left to stop"
    if gone:
        return f"yes, all, {time.monotonic() - begun:.1f} s"
    words = {"start": "the job", "child": "its child", "session": "its child with setsid"}
    return f"**no**: {', '.join(words[family[pid]] for pid in left())} live on"
