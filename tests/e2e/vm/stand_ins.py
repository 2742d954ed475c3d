"""Programs of the guest that stand in for those of schedulers and trainings: all of them sleep."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.daemons import eventually

PROGRAMS = Path("/tmp/bin")  # noqa: S108 - nobody else is here


def program(name: str) -> str:
    """Return a program of this name that sleeps."""
    PROGRAMS.mkdir(exist_ok=True)
    path = PROGRAMS / name
    if not path.exists():
        shutil.copy("/usr/bin/sleep", path)
    return os.fspath(path)


@contextmanager
def running(*command: str, group: Path, cpus: str | None = None) -> Iterator[int]:
    """Run a program in a cgroup, on some CPUs; give its pid."""
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
    """Return what runs, once it has become the last of the programs before it."""
    text = Path(f"/proc/{pid}/cmdline").read_text()
    return "" if "taskset" in text or "cgroup.procs" in text else text
