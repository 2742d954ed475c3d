"""Functions of the guests' scripts: they report progress, make cgroups, run programs."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from affinityd.cpuset import format_list
from tests.support.daemons import eventually

SOCKET = Path("/run/affinityd/affinityd.sock")  # the daemon's default
CPU_FOLDER = Path("/sys/devices/system/cpu")
PCI_FOLDER = Path("/sys/bus/pci/devices")
GROUPS = Path("/sys/fs/cgroup")
RELEASE = "release"  #: the folder of another Debian, for scripts that need one

Document = dict[str, Any]  #: what a script reports
Ended = dict[str, Any]  #: a process that has ended: its status, its stdout, its stderr


def stage(name: str) -> None:
    sys.stderr.write(f"{time.monotonic():6.1f} s: {name}\n")


def bring(*cpus: str, online: bool) -> None:
    for cpu in cpus:
        (CPU_FOLDER / f"cpu{cpu}/online").write_text(str(int(online)))


def cgroup(name: str, **files: str) -> Path:
    """Make a cgroup with a cpuset; `cpus="0-3"`: the text for its `cpuset.cpus`."""
    folder = GROUPS / name
    (folder.parent / "cgroup.subtree_control").write_text("+cpuset")
    folder.mkdir(exist_ok=True)
    for file, text in files.items():
        (folder / f"cpuset.{file}").write_text(text)
    return folder


def ran(command: Sequence[str]) -> Ended:
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    return {"status": ended.returncode, "stdout": ended.stdout, "stderr": ended.stderr}


def output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


# Programs of the guest that stand in for those of schedulers and trainings: all of them sleep.

PROGRAMS = Path("/tmp/bin")  # noqa: S108 - nobody else is here


def program(name: str) -> str:
    PROGRAMS.mkdir(exist_ok=True)
    path = PROGRAMS / name
    if not path.exists():
        shutil.copy("/usr/bin/sleep", path)
    return os.fspath(path)


@contextmanager
def running(*command: str, group: Path, cpus: str | None = None) -> Iterator[int]:
    words = command if len(command) > 1 else (*command, "1000")
    confine = ("taskset", "-c", cpus) if cpus else ()
    enter = ("sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', os.fspath(group))
    with subprocess.Popen([*enter, *confine, *words]) as process:
        is_there = lambda: Path(words[0]).name in _command_line(process.pid)  # noqa: E731
        eventually(is_there, f"{words[0]} runs")
        try:
            yield process.pid
        finally:
            process.kill()


def _command_line(pid: int) -> str:
    """Return the command line of a process, once it runs the last of its chain of programs."""
    text = Path(f"/proc/{pid}/cmdline").read_text()
    return "" if "taskset" in text or "cgroup.procs" in text else text


def addresses() -> list[str]:
    is_gpu = (it.name for it in PCI_FOLDER.iterdir() if (it / "class").read_text() == "0x030000\n")
    return sorted(is_gpu)


# Programs that fill memory.

FILL = (sys.executable, "-I", "-S", os.fspath(Path(__file__).with_name("filling.py")))


def thread_masks(pid: int) -> list[str]:
    """Return the mask of each thread, the main one first, from /proc."""
    tids = sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir())
    return [format_list(os.sched_getaffinity(tid)) for tid in tids]
