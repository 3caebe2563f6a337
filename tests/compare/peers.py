"""How each supervisor is told to do the same thing. One class each, kennel the last.

A peer is used like this: `declare` the jobs, `up`, then `cli` or `api` to start one of them. Those
that want files (supervisord, circus, s6) get them in `up`; those that take commands, later.
Every peer has its defaults, but for this: a job that ends is not started again.
"""

import http.client
import json
import os
import select
import shlex
import socket
import subprocess
import time
import xmlrpc.client
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from world import HERE, PATIENCE_S, pid_behind, until

# Clients at work at the same time where a peer takes one job per client.
CLIENTS = 4


@dataclass
class Claim:
    """What a supervisor says of a job."""

    words: str
    state: str  # "running", "ended" or "nothing"
    pid: int = 0
    code: int | None = None


NOTHING = Claim("nothing: not in its list", "nothing")


class Peer:
    """What all have in common. `autostart`: jobs declared in files start with the daemon."""

    name = ""
    # What stands in the tables about its memory of ends.
    keeps = ""
    # Jobs are declared in files that the daemon reads.
    by_file = False
    # How a job is handed over: by a client, without one, and many at once.
    way = ""
    api_way = "none"
    burst_way = ""
    # Whom the crash hits, in words.
    killed = "its daemon"

    def __init__(self, world, path, autostart=False):
        self.world = world
        self.home = world.home(type(self).__name__.lower())
        self.env = world.environment(self.home, path)
        self.autostart = autostart
        self.jobs = {}
        self.ids = {}
        self.files = {}
        self.daemon = None

    def declare(self, jobs):
        self.jobs.update({name: list(map(str, argv)) for name, argv in jobs.items()})

    def run(self, *argv, check=True):
        done = subprocess.run(
            list(map(str, argv)), env=self.env, cwd=self.home, text=True, timeout=PATIENCE_S * 4,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        if check and done.returncode != 0:
            said = (done.stdout + done.stderr)[-1000:]
            raise RuntimeError(f"{argv[:6]}: {done.returncode}: {said}")
        return done.stdout

    def which(self, command):
        for directory in self.env["PATH"].split(os.pathsep):
            if (Path(directory) / command).exists():
                return str(Path(directory) / command)
        raise SystemExit(f"compare: {command} is not installed")

    def serve(self, *argv):
        """Starts a daemon that stays in the foreground."""
        log = open(self.home / "daemon.log", "ab")
        self.daemon = subprocess.Popen(
            list(map(str, argv)), env=self.env, cwd=self.home,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )
        self.world.hold(self.daemon.pid)

    def up(self):
        raise NotImplementedError

    def cli(self, name):
        """The command that starts a declared job."""
        raise NotImplementedError

    def api(self, name):
        """Starts a declared job without a client process; returns the time of asking."""
        raise NotImplementedError

    def launch(self, name):
        """Starts a job and remembers what the peer calls it."""
        self.ids[name] = self.run(*self.cli(name)).strip()

    def after_start(self, name):
        """Takes a started job off the books where they would grow and slow the next start."""

    def burst(self, names):
        """Starts all, and returns once the peer itself says of each that it has ended."""
        raise NotImplementedError

    def clear(self, names):
        """Makes ready for the next burst; this is not timed."""

    def victims(self):
        """Whom a crash kills."""
        return [self.daemon.pid]

    def restart(self):
        """The documented way back after a crash."""
        self.up()

    def reap(self):
        """Collects the daemon we started, or its zombie would look alive."""
        if self.daemon:
            self.daemon.wait(PATIENCE_S)

    def says(self, name):
        raise NotImplementedError

    def output(self, name):
        """The job's output, and where it was found."""
        raise NotImplementedError

    def stop(self, name):
        raise NotImplementedError


def many(run, commands):
    """Runs clients side by side."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda argv: run(*argv), commands))


class Bridge:
    """A peer's own client library, in a process of its own."""

    def __init__(self, peer, *argv):
        self.process = subprocess.Popen(
            list(map(str, argv)), env=peer.env, cwd=peer.home, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        peer.world.hold(self.process.pid)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], PATIENCE_S)[0]:
            raise RuntimeError(f"no answer to {line}")
        return int(self.process.stdout.readline())


class Tmux(Peer):
    name = "tmux"
    keeps = "none; the screen of a window, in memory"
    way = "`new-window -d`"
    api_way = "control mode"
    burst_way = "one `source-file`"
    control = None

    def version(self):
        return self.run("tmux", "-V").split()[1]

    def tmux(self, *argv, check=True):
        return self.run("tmux", "-S", self.home / "s", "-f", "/dev/null", *argv, check=check)

    def up(self):
        self.tmux("new-session", "-d", "-s", "main", "sleep", "infinity")
        # Else the end of a window would be known by its absence alone.
        self.tmux("set", "-g", "remain-on-exit", "on")
        self.world.hold(pid_behind(self.home / "s"))

    def cli(self, name):
        window = ["new-window", "-d", "-n", name, *self.jobs[name]]
        return [self.which("tmux"), "-S", str(self.home / "s"), *window]

    def api(self, name):
        if self.control is None:
            self.control = subprocess.Popen(
                ["tmux", "-S", str(self.home / "s"), "-C", "attach"], env=self.env, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            )
            self.world.hold(self.control.pid)
            time.sleep(0.2)
        line = shlex.join(["new-window", "-d", "-n", name, *self.jobs[name]])
        asked = time.monotonic_ns()
        self.control.stdin.write(line + "\n")
        self.control.stdin.flush()
        return asked

    def after_start(self, name):
        self.tmux("kill-window", "-t", f"main:{name}")

    def burst(self, names):
        lines = [shlex.join(["new-window", "-d", "-n", name, *self.jobs[name]]) for name in names]
        script = self.home / "burst"
        script.write_text("\n".join(lines) + "\n")
        self.tmux("source-file", script)
        dead = lambda: self.tmux("list-panes", "-a", "-F", "#{pane_dead}").split().count("1")
        until(lambda: dead() == len(names), "windows to end")

    def clear(self, names):
        for name in names:
            self.after_start(name)

    def victims(self):
        return [pid_behind(self.home / "s")]

    def says(self, name):
        form = "#{window_name} #{pane_pid} #{pane_dead} #{pane_dead_status}"
        for line in self.tmux("list-panes", "-a", "-F", form).splitlines():
            found, pid, dead, *code = line.split()
            if found == name and dead == "0":
                return Claim(f"running, pid {pid}", "running", int(pid))
            if found == name:
                return Claim(f"dead {code}", "ended", code=int(code[0]) if code else None)
        return Claim("nothing: no such window", "nothing")

    def output(self, name):
        window = f"main:{name}"
        return self.tmux("capture-pane", "-p", "-S", "-", "-t", window, check=False), "window"

    def stop(self, name):
        self.tmux("kill-window", "-t", f"main:{name}", check=False)


class TaskSpooler(Peer):
    name = "task-spooler"
    keeps = "none; a list in memory"
    way = "`tsp`, 300 slots"
    burst_way = "clients, 4 at a time"

    def version(self):
        return self.run("tsp", "-V").split()[2].lstrip("v")

    def up(self):
        self.env["TS_SOCKET"] = str(self.home / "s")
        self.env["TS_SLOTS"] = "300"
        self.run("tsp")
        self.world.hold(pid_behind(self.home / "s"))

    def cli(self, name):
        return [self.which("tsp"), *self.jobs[name]]

    def burst(self, names):
        self.run("tsp", "-C")
        many(self.run, [self.cli(name) for name in names])
        until(lambda: self.run("tsp", "-l").count(" finished ") == len(names), "jobs to end")

    def launch(self, name):
        super().launch(name)
        # It has none before the job runs, and says so with an error.
        named = lambda: self.run("tsp", "-o", self.ids[name], check=False).strip()
        self.files[name] = Path(until(named, "an output file"))

    def victims(self):
        return [pid_behind(self.home / "s")]

    def says(self, name):
        if self.run("tsp", "-l").find(self.jobs[name][-1]) < 0:
            return NOTHING
        state = self.run("tsp", "-s", self.ids[name], check=False).strip()
        if state == "running":
            pid = self.run("tsp", "-p", self.ids[name]).strip()
            return Claim(f"running, pid {pid}", "running", int(pid))
        info = self.run("tsp", "-i", self.ids[name])
        return Claim(state, "ended", code=int(info.split("exit code ")[1].split()[0]))

    def output(self, name):
        return self.files[name].read_text(), "file in TMPDIR, which it no longer lists"

    def stop(self, name):
        self.run("tsp", "-k", self.ids[name], check=False)


class S6(Peer):
    name = "s6"
    keeps = "last 100 deaths of a service, in a file that is not synced"
    by_file = True
    way = "`s6-svc -o`"
    api_way = "its control pipe"
    burst_way = "its control pipes"
    killed = "s6-svscan"

    def version(self):
        package = self.run("dpkg-query", "-W", "-f", "${Version}", "s6", check=False)
        return package.split("-")[0] or "?"

    def service(self, name):
        return self.home / "services" / name

    def up(self):
        for name, argv in self.jobs.items():
            self.write_service(name, argv)
        self.serve("s6-svscan", "-c", "1000", self.home / "services")
        ready = lambda name: subprocess.run(["s6-svok", str(self.service(name))]).returncode == 0
        for name in self.jobs:
            until(lambda: ready(name), "s6-supervise")
            self.world.hold(self.supervisor(self.service(name)))
            if (self.service(name) / "log").exists():
                self.world.hold(self.supervisor(self.service(name) / "log"))

    def supervisor(self, service):
        """The s6-supervise of a service: who locks it, told by the kernel."""
        inode = (service / "supervise" / "lock").stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[-3].endswith(f":{inode}"):
                return int(fields[-4])
        raise RuntimeError(f"nobody holds {service}")

    def write_service(self, name, argv):
        service = self.service(name)
        if service.exists():
            return
        service.mkdir(parents=True)
        run = service / "run"
        run.write_text(f"#!/bin/sh\nexec {shlex.join(argv)}\n")
        run.chmod(0o755)
        if not self.autostart:
            (service / "down").touch()
            return
        # With 125 s6 takes the end for final; else it would start the job again.
        finish = service / "finish"
        finish.write_text("#!/bin/sh\nexit 125\n")
        finish.chmod(0o755)
        # Jobs whose output is looked at get s6's own logger.
        (service / "log").mkdir()
        log = service / "log" / "run"
        log.write_text(f"#!/bin/sh\nexec s6-log n20 s1000000 {self.home}/log-{name}\n")
        log.chmod(0o755)

    def cli(self, name):
        return [self.which("s6-svc"), "-o", str(self.service(name))]

    def api(self, name):
        pipe = os.open(self.service(name) / "supervise" / "control", os.O_WRONLY | os.O_NONBLOCK)
        asked = time.monotonic_ns()
        os.write(pipe, b"o")
        os.close(pipe)
        return asked

    def burst(self, names):
        size = lambda name: os.path.getsize(self.service(name) / "supervise" / "death_tally")
        before = {name: size(name) for name in names}
        for name in names:
            self.api(name)
        left = list(names)

        def over():
            left[:] = [name for name in left if size(name) <= before[name]]
            return not left

        until(over, "deaths to be tallied")

    def clear(self, names):
        # s6-supervise starts a service at most once a second.
        time.sleep(1.5)

    def says(self, name):
        service = self.service(name)
        up, pid = self.run("s6-svstat", "-o", "up,pid", service).split()
        deaths = [line for line in self.run("s6-svdt", service).splitlines() if "exitcode" in line]
        code = int(deaths[-1].split()[-1]) if deaths else None
        if up == "true":
            return Claim(f"up, pid {pid}", "running", int(pid), code)
        return Claim("down", "ended", code=code)

    def output(self, name):
        return (self.home / f"log-{name}" / "current").read_text(), "s6-log"

    def stop(self, name):
        self.run("s6-svc", "-d", self.service(name))


class S6Keeper(S6):
    """The same, but the crash hits the process beside each job; s6-svscan brings it back."""

    name = "s6"
    killed = "each s6-supervise"

    def victims(self):
        return [self.supervisor(self.service(name)) for name in self.jobs]

    def restart(self):
        # s6-svscan does it, within a second.
        for name in self.jobs:
            self.world.hold(until(lambda: self.new_supervisor(name), "s6-svscan to restart it"))

    def new_supervisor(self, name):
        try:
            return self.supervisor(self.service(name))
        except RuntimeError:
            return None

    def reap(self):
        pass


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE_S * 2)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class UnixTransport(xmlrpc.client.Transport):
    def __init__(self, path):
        super().__init__()
        self.path = path

    def make_connection(self, host):
        if self._connection == (None, None) or self._connection[0] != host:
            self._connection = host, UnixConnection(self.path)
        return self._connection[1]


class Supervisord(Peer):
    name = "supervisord"
    keeps = "none; a line in its log for people"
    by_file = True
    way = "`supervisorctl start`"
    api_way = "XML-RPC on its unix socket"
    burst_way = "one connection"

    def version(self):
        return self.run("supervisord", "--version").strip()

    def up(self):
        self.conf = self.home / "supervisord.conf"
        self.conf.write_text(self.configuration())
        (self.home / "s").unlink(missing_ok=True)
        self.serve(self.which("supervisord"), "-n", "-c", self.conf)
        until((self.home / "s").exists, "supervisord")
        self.rpc = self.connect()

    def connect(self):
        transport = UnixTransport(self.home / "s")
        return xmlrpc.client.ServerProxy("http://localhost", transport=transport).supervisor

    def configuration(self):
        text = f"""
[unix_http_server]
file={self.home}/s
[supervisord]
logfile={self.home}/log
pidfile={self.home}/pid
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://{self.home}/s
"""
        for name, argv in self.jobs.items():
            text += f"""
[program:{name}]
command={shlex.join(argv)}
autostart={str(self.autostart).lower()}
autorestart=false
startsecs=0
stdout_logfile={self.home}/{name}.out
"""
        return text

    def cli(self, name):
        return [self.which("supervisorctl"), "-c", str(self.conf), "start", name]

    def api(self, name):
        asked = time.monotonic_ns()
        self.rpc.startProcess(name, False)
        return asked

    def burst(self, names):
        wanted = set(names)
        self.rpc.getState()
        for name in names:
            self.rpc.startProcess(name, False)

        def over():
            programs = [p for p in self.rpc.getAllProcessInfo() if p["name"] in wanted]
            return all(program["statename"] == "EXITED" for program in programs)

        until(over, "programs to end")

    def says(self, name):
        info = self.connect().getProcessInfo(name)
        words = f"{info['statename']}, pid {info['pid']}" if info["pid"] else info["statename"]
        if info["pid"]:
            return Claim(words, "running", info["pid"])
        code = info["exitstatus"] if info["statename"] == "EXITED" else None
        return Claim(words, "ended", code=code)

    def output(self, name):
        return (self.home / f"{name}.out").read_text(), "log file"

    def stop(self, name):
        self.run("supervisorctl", "-c", self.conf, "stop", name, check=False)


class Circus(Peer):
    name = "circus"
    keeps = "none"
    by_file = True
    way = "`circusctl start`"
    api_way = "its Python client, zmq"
    burst_way = "one connection"
    bridge = None

    def version(self):
        return self.run("circusd", "--version").split()[-1]

    def endpoint(self, which):
        return f"ipc://{self.home}/{which}"

    def up(self):
        text = f"""
[circus]
endpoint = {self.endpoint("s")}
pubsub_endpoint = {self.endpoint("p")}
"""
        for name, argv in self.jobs.items():
            text += f"""
[watcher:{name}]
cmd = {argv[0]}
args = {shlex.join(argv[1:])}
autostart = {self.autostart}
respawn = False
stdout_stream.class = FileStream
stdout_stream.filename = {self.home}/{name}.out
"""
        (self.home / "circus.ini").write_text(text)
        self.serve(self.which("circusd"), self.home / "circus.ini")
        until(lambda: "ok" in self.control("status", check=False) or None, "circusd")

    def control(self, *argv, check=True):
        options = ["--endpoint", self.endpoint("s"), "--timeout", "5"]
        answer = self.run("circusctl", *options, *argv, check=check)
        # Without jobs its status is an empty list; that it answers at all is what is asked.
        return answer + ("ok" if argv == ("status",) and "error" not in answer else "")

    def cli(self, name):
        return [self.which("circusctl"), "--endpoint", self.endpoint("s"), "start", name]

    def api(self, name):
        if self.bridge is None:
            python = Path(self.which("circusd")).parent / "python"
            self.bridge = Bridge(self, python, HERE / "bridge_circus.py", self.endpoint("s"))
            time.sleep(1)
        return self.bridge.ask(name)

    def burst(self, names):
        for name in names:
            self.api(name)
        wanted = set(names)

        def live():
            rows = [line.partition(": ") for line in self.control("status").splitlines()]
            return [name for name, _, state in rows if name in wanted and state != "stopped"]

        until(lambda: not live(), "watchers to stop", PATIENCE_S * 2)

    def says(self, name):
        state = self.control("status", name).strip()
        words = self.control("list", name).replace(",", " ").split()
        pids = [word for word in words if word.isdigit()]
        if state == "active" and pids:
            return Claim(f"active, pid {', '.join(pids)}", "running", int(pids[0]))
        return Claim(state, "ended")

    def output(self, name):
        return (self.home / f"{name}.out").read_text(), "log file"

    def stop(self, name):
        self.control("stop", name, check=False)


class Pm2(Peer):
    name = "pm2"
    keeps = "none; a list in memory (`pm2 save` keeps what to start, no ends)"
    way = "`pm2 start`"
    api_way = "its Node client"
    burst_way = "one `pm2 start FILE`"
    bridge = None

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.env["PM2_HOME"] = str(self.home / "pm2")

    def version(self):
        library = Path(self.which("pm2")).resolve().parent.parent
        return json.loads((library / "package.json").read_text())["version"]

    def up(self):
        self.run("pm2", "ping")
        self.world.hold(self.daemon_pid())

    def daemon_pid(self):
        return int((self.home / "pm2" / "pm2.pid").read_text())

    def application(self, name):
        argv = self.jobs[name]
        program = {"script": argv[0], "args": argv[1:], "interpreter": "none"}
        return {"name": name, **program, "autorestart": False}

    def cli(self, name):
        argv = self.jobs[name]
        options = ["--name", name, "--no-autorestart", "--interpreter", "none"]
        return [self.which("pm2"), "start", argv[0], *options, "--", *argv[1:]]

    def ask(self, order):
        if self.bridge is None:
            library = Path(self.which("pm2")).resolve().parent.parent
            self.bridge = Bridge(self, "node", HERE / "bridge_pm2.js", library)
        return self.bridge.ask(json.dumps(order))

    def api(self, name):
        return self.ask({"start": self.application(name)})

    def after_start(self, name):
        self.ask({"delete": name})

    def burst(self, names):
        ecosystem = self.home / "ecosystem.json"
        ecosystem.write_text(json.dumps({"apps": [self.application(name) for name in names]}))
        self.run("pm2", "start", ecosystem)
        until(lambda: self.listed().count("stopped") == len(names), "applications to stop")

    def clear(self, names):
        self.run("pm2", "delete", "all")

    def listed(self):
        return [app["pm2_env"]["status"] for app in self.list()]

    def list(self):
        text = self.run("pm2", "jlist")
        return json.loads(text[text.index("["):])

    def victims(self):
        # What it is to bring back has to be saved first; this is its documented way.
        self.run("pm2", "save")
        return [self.daemon_pid()]

    def restart(self):
        self.run("pm2", "resurrect")
        self.world.hold(self.daemon_pid())

    def says(self, name):
        for app in self.list():
            if app["name"] == name:
                env = app["pm2_env"]
                if env["status"] == "online":
                    return Claim(f"online, pid {app['pid']}", "running", app["pid"])
                return Claim(env["status"], "ended", code=env.get("exit_code"))
        return NOTHING

    def output(self, name):
        return (self.home / "pm2" / "logs" / f"{name}-out.log").read_text(), "log file"

    def stop(self, name):
        self.run("pm2", "stop", name, check=False)


class Pueue(Peer):
    name = "pueue"
    keeps = "yes: every task with its end in a JSON file, rewritten whole, not synced"
    way = "`pueue add --immediate`"
    api_way = "not measured: a protocol of its own, only its CLI speaks it"
    burst_way = "clients, 4 at a time"

    def version(self):
        return self.run("pueue", "--version").split()[1]

    def up(self):
        self.serve(self.which("pueued"))
        until(lambda: "Group" in self.run("pueue", "status", check=False), "pueued")
        self.run("pueue", "parallel", "300")

    def cli(self, name):
        options = ["--print-task-id", "--immediate"]
        return [self.which("pueue"), "add", *options, "--", *self.jobs[name]]

    def tasks(self):
        return json.loads(self.run("pueue", "status", "--json"))["tasks"]

    def burst(self, names):
        many(self.run, [self.cli(name) for name in names])
        done = lambda: sum("Done" in task["status"] for task in self.tasks().values())
        until(lambda: done() == len(names), "tasks to end")

    def clear(self, names):
        self.run("pueue", "clean")

    def says(self, name):
        status = self.tasks()[self.ids[name]]["status"]
        if "Running" in status:
            # It does not say which process that is.
            return Claim("Running", "running")
        result = status.get("Done", {}).get("result")
        code = result.get("Failed") if isinstance(result, dict) else None
        return Claim(f"Done: {result}" if result else json.dumps(status), "ended", code=code)

    def output(self, name):
        return self.run("pueue", "log", "--full", self.ids[name]), "`pueue log`"

    def stop(self, name):
        self.run("pueue", "kill", self.ids[name], check=False)


class Kennel(Peer):
    name = "kennel"
    keeps = "yes: every start and end, synced to disk before it is told"
    way = "`kennel run -d`"
    api_way = "`POST /v1/runs` on its unix socket"
    burst_way = "16 connections"
    killed = "the daemon"
    binary = None  # Set once, from the command line.
    connection = None

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.env["KENNEL_HOME"] = str(self.home / "k")
        self.socket = self.home / "k" / "state" / "socket"

    def version(self):
        return self.run(self.binary, "--version").split()[-1]

    def up(self):
        self.run(self.binary, "ps")
        self.world.hold(pid_behind(self.socket))

    def cli(self, name):
        return [str(self.binary), "run", "-d", "--", *self.jobs[name]]

    def connect(self):
        connection = UnixConnection(self.socket)
        connection.connect()
        return connection

    def request(self, name):
        env = [[key, value] for key, value in self.env.items()]
        return json.dumps({"command": self.jobs[name], "cwd": str(self.home), "env": env}).encode()

    def api(self, name):
        if self.connection is None:
            self.connection = self.connect()
        body = self.request(name)
        asked = time.monotonic_ns()
        self.post(self.connection, body)
        return asked

    def post(self, connection, body):
        connection.request("POST", "/v1/runs", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        run = json.loads(answer.read())
        if answer.status != 201:
            raise RuntimeError(f"kennel: {answer.status}: {run}")
        return run["id"]

    def burst(self, names):
        """Several connections, each kept alive and asked one run after the other."""
        # Each answer comes after the exec: with few connections, that is what would be measured.
        connections = 16
        share = [names[n::connections] for n in range(connections)]

        def work(mine):
            connection = self.connect()
            return [self.post(connection, self.request(name)) for name in mine]

        with ThreadPoolExecutor(connections) as pool:
            ids = {run for runs in pool.map(work, share) for run in runs}
        until(lambda: ids <= self.dead(), "runs to end")

    def dead(self):
        # The newest are enough: no more are ever asked about at once.
        lines = self.run(self.binary, "ps", "-a", "-n", "300", "--json").splitlines()
        return {run["id"] for run in map(json.loads, lines) if run["state"] == "dead"}

    def show(self, name):
        return json.loads(self.run(self.binary, "show", self.ids[name], "--json"))

    def launch(self, name):
        super().launch(name)
        self.world.hold(self.show(name)["keeper"]["pid"])

    def victims(self):
        return [pid_behind(self.socket)]

    def says(self, name):
        run = self.show(name)
        if run["state"] in ("running", "starting", "stopping", "stuck"):
            pid = run["leader"]["pid"]
            return Claim(f"{run['state']}, pid {pid}", "running", pid)
        status = run["end"]["status"]
        how = ", ".join(f"{key} {value}" for key, value in status.items())
        proof = "" if run["proof"] else ", unproven"
        words = f"{run['state']}: {run['end']['cause']}, {how}{proof}"
        return Claim(words, "ended", code=status.get("exited"))

    def output(self, name):
        return self.run(self.binary, "logs", self.ids[name]), "`kennel logs`"

    def stop(self, name):
        self.run(self.binary, "stop", self.ids[name], check=False)


class KennelKeeper(Kennel):
    """The same, but the crash hits the process beside each run."""

    name = "kennel"
    killed = "each keeper"

    def victims(self):
        return [self.show(name)["keeper"]["pid"] for name in self.jobs]

    def restart(self):
        pass


PEERS = [Tmux, TaskSpooler, S6, Supervisord, Circus, Pm2, Pueue, Kennel]
