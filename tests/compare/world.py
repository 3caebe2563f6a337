"""Where a comparison happens: one temporary directory, the agent, and every process started there.

A process is held by a descriptor of it from the moment its number is learnt, and signalled through
that alone: a number that was given to somebody else meanwhile is never hit.
"""

import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# How long anything may take that should take no time: far above every figure measured.
PATIENCE_S = 30
POLL_S = 0.01


class World:
    """Everything made for one comparison; `close` leaves nothing of it."""

    def __init__(self):
        # Short, because the sockets below it may have 107 bytes at most.
        self.root = Path(tempfile.mkdtemp(prefix="cmp-", dir="/tmp"))
        self.agent = self.root / "agent"
        self.fifo = self.root / "stamps"
        self.asked = self.root / "asked"
        self.held = {}
        self.homes = 0
        compile_agent(self.agent)
        os.mkfifo(self.fifo)
        # For reading and writing, so that it never ends between two agents.
        self.stamps = os.open(self.fifo, os.O_RDWR | os.O_NONBLOCK)

    def home(self, name):
        """A new private home."""
        self.homes += 1
        home = self.root / f"{self.homes}-{name}"
        (home / "tmp").mkdir(parents=True)
        (home / "run").mkdir(mode=0o700)
        return home

    def environment(self, home, path):
        """An environment in which nothing of the user's own is found."""
        return {
            "PATH": os.pathsep.join([*map(str, path), os.environ["PATH"]]),
            "HOME": str(home),
            "XDG_RUNTIME_DIR": str(home / "run"),
            "TMPDIR": str(home / "tmp"),
            "LANG": "C.UTF-8",
            "TERM": "xterm",
        }

    def hold(self, pid):
        """Remembers a process that must not outlive us. None if it is gone already."""
        if pid not in self.held:
            try:
                self.held[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                return None
        return self.held[pid]

    def release(self, pid):
        """Forgets a process that has been collected."""
        os.close(self.held.pop(pid))

    def kill(self, pid):
        """SIGKILL, and the certainty that it worked."""
        fd = self.hold(pid)
        if fd is None:
            return
        try:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if not poll.poll(PATIENCE_S * 1000):
            raise RuntimeError(f"process {pid} does not die")
        os.close(self.held.pop(pid))

    def next_stamp(self):
        """Waits for an agent's first instruction. The time is the agent's own."""
        ready, _, _ = select.select([self.stamps], [], [], PATIENCE_S)
        if not ready:
            raise RuntimeError("the agent did not start")
        lines = os.read(self.stamps, 4096).split()
        if len(lines) != 1:
            raise RuntimeError(f"{len(lines)} agents started instead of one")
        return int(lines[0])

    def close(self):
        """Ends whatever was started, by the descriptors held and by the agent's own notes."""
        for truth in self.root.glob("*/*.truth"):
            for pid in Truth(truth).pids():
                if is_agent(pid, self.agent):
                    self.hold(pid)
        for pid in list(self.held):
            self.kill(pid)
        os.close(self.stamps)
        # Twice at most: a dying supervisor may still write.
        shutil.rmtree(self.root, ignore_errors=True)
        time.sleep(0.2)
        shutil.rmtree(self.root, ignore_errors=True)


class Truth:
    """What the instances of one job noted about themselves."""

    def __init__(self, path):
        self.path = path

    def lines(self):
        if not self.path.exists():
            return []
        return [line.split() for line in self.path.read_text().splitlines()]

    def pids(self, *kinds):
        kinds = kinds or ("start", "child", "session")
        return [int(line[1]) for line in self.lines() if line[0] in kinds]

    def parent(self):
        """Who started the first instance."""
        return next(int(line[2]) for line in self.lines() if line[0] == "start")

    def spoken(self, pid):
        """The lines this instance wrote, as they should be in its output."""
        said = [line for line in self.lines() if line[0] == "line" and line[1] == str(pid)]
        return [" ".join(line) for line in said]

    def tell_to_end(self, pid):
        Path(f"{self.path}.end.{pid}").touch()


def compile_agent(to):
    source = str(HERE / "agent.c")
    # Static if the machine can: then its first instruction does not wait for a dynamic linker.
    for how in (["-static"], []):
        argv = ["cc", "-O2", *how, "-o", str(to), source]
        if subprocess.run(argv, stderr=subprocess.DEVNULL).returncode == 0:
            return
    raise SystemExit("compare: a C compiler is needed")


def is_agent(pid, agent):
    """True if this number belongs to a live process that is our agent."""
    try:
        exe = os.readlink(f"/proc/{pid}/exe")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return exe == str(agent) and state not in "ZX"


def pid_behind(path):
    """The process that listens on a unix socket: the kernel's word, no pid file needed."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        found = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return struct.unpack("iII", found)[0]


def until(true, what, bound_s=PATIENCE_S):
    """Waits for a condition and returns it, or fails loudly."""
    deadline = time.monotonic() + bound_s
    while True:
        found = true()
        if found:
            return found
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {bound_s} s in vain: {what}")
        time.sleep(POLL_S)


def comes_true(true, bound_s):
    """Whether a condition holds before the time is over."""
    try:
        until(true, "", bound_s)
    except RuntimeError:
        return False
    return True
