"""Gets the peers from their own packages. All but Debian's go into one private directory."""

import os
import shutil
import subprocess
import sys

# Command -> Debian package. None of these starts a service when it is installed.
DEBIAN = {"tmux": "tmux", "tsp": "task-spooler", "s6-svscan": "s6"}
# Supervisor is taken from pip: Debian's package would start a daemon of its own.
PIP = ["supervisor", "circus"]


def install(into):
    """Installs what is missing. Returns the directories in which the commands are."""
    into.mkdir(parents=True, exist_ok=True)
    install_debian()
    install_pip(into / "python")
    install_npm(into / "npm")
    install_cargo(into / "cargo")
    return [into / "python" / "bin", into / "npm" / "bin", into / "cargo" / "bin"]


def install_debian():
    missing = [package for command, package in DEBIAN.items() if not shutil.which(command)]
    if not missing:
        return
    if os.geteuid() != 0:
        raise SystemExit(f"compare: install these first, or run as root: {' '.join(missing)}")
    step("apt-get", "update", "-q")
    step("apt-get", "install", "-qy", "--no-install-recommends", *missing)


def install_pip(into):
    if (into / "bin" / "circusd").exists() and (into / "bin" / "supervisord").exists():
        return
    step(sys.executable, "-m", "venv", str(into))
    step(str(into / "bin" / "pip"), "install", "-q", *PIP)


def install_npm(into):
    if not (into / "bin" / "pm2").exists():
        step("npm", "install", "--silent", "-g", "--prefix", str(into), "pm2")


def install_cargo(into):
    if not (into / "bin" / "pueued").exists():
        step("cargo", "install", "-q", "pueue", "--locked", "--root", str(into))


def step(*argv):
    """What an installer has to say goes to stderr: stdout is for the tables."""
    print("compare:", *argv, file=sys.stderr)
    subprocess.run(argv, check=True, stdout=sys.stderr)
