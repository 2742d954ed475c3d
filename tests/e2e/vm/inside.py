"""What the guests' scripts do alike: they say how far they are, make cgroups, run programs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

AFFINITYD = (sys.executable, "-m", "affinityd")
SOCKET = Path("/run/affinityd/affinityd.sock")  # the default; the daemon is told nothing
CPU_FOLDER = Path("/sys/devices/system/cpu")
PCI_FOLDER = Path("/sys/bus/pci/devices")
GROUPS = Path("/sys/fs/cgroup")

Document = dict[str, Any]  #: what a script reports
Ended = dict[str, Any]  #: a process that has ended: its status, its stdout, its stderr


def stage(name: str) -> None:
    """Tell the console how far it came."""
    sys.stderr.write(f"{time.monotonic():6.1f} s: {name}\n")


def bring(*cpus: str, online: bool) -> None:
    """Take CPUs online, or offline."""
    for cpu in cpus:
        (CPU_FOLDER / f"cpu{cpu}/online").write_text(str(int(online)))


def cgroup(name: str, **files: str) -> Path:
    """Make a cgroup with a cpuset; `cpus="0-3"` is what to write into its `cpuset.cpus`."""
    folder = GROUPS / name
    (folder.parent / "cgroup.subtree_control").write_text("+cpuset")
    folder.mkdir(exist_ok=True)
    for file, text in files.items():
        (folder / f"cpuset.{file}").write_text(text)
    return folder


def nested(path: str, cpuset: str | None) -> Path:
    """Make a cgroup and those above it; the last has the cpuset."""
    parts = path.split("/")
    for depth in range(1, len(parts)):
        cgroup("/".join(parts[:depth]))
    return cgroup(path, **({"cpus": cpuset} if cpuset else {}))


def ran(command: Sequence[str]) -> Ended:
    """Return how a command ended, however that was."""
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    return {"status": ended.returncode, "stdout": ended.stdout, "stderr": ended.stderr}


def output(*command: str) -> str:
    """Return what a command prints; it must succeed."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
