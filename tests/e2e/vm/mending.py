"""Processes that are not where their GPU is: what `verify` says of them, and what `pin` mends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from affinityd.cpuset import format_list
from tests.e2e.vm.inside import Ended, cgroup, output, ran
from tests.e2e.vm.stand_ins import program, running
from tests.e2e.vm.warm import affinityd

FIRST_GPU = ("--gpus", "0")  #: is on node 3
FILL = (sys.executable, "-I", "-S", os.fspath(Path(__file__).with_name("filling.py")))

#: The cpuset of a rank, and a command; then its mask, the command's status, and what that says.
SHRINKING = {
    "8-15": ("verify", "12-15", 0, ""),
    "8-9": ("verify", "8-9", 1, "GPU 0 is on node 3, and its cpuset, 8-9, has no CPU there"),
    "8-9, pinned": ("pin", "8-9", 0, "remote_home: rank 0 has CPUs away from NUMA node 3"),
    "8-15, pinned": ("pin", "12-15", 0, "1 thread pinned to CPUs 12-15\n"),
}


def memory() -> dict[str, Any]:
    """Return what is found of processes whose memory is, and is not, where their GPU is."""
    seen: dict[str, Ended] = {}
    with filled("taskset", "-c", "4-7") as pid:
        output("taskset", "-acp", "12-15", pid)
        seen["filled, then pinned"] = affinityd("verify", pid, *FIRST_GPU)
        seen["resident"] = resident(pid, *FIRST_GPU)
        remedy = re.search(r"migratepages [-\w ,]*\d", seen["resident"]["stdout"])
        seen["migratepages"] = ran(remedy[0].split() if remedy else ["false"])
        seen["its pages moved"] = resident(pid, *FIRST_GPU)
    with filled("numactl", "--physcpubind=12-15", "--membind=1") as pid:
        seen["bound far away"] = affinityd("verify", pid, *FIRST_GPU)
    with filled("taskset", "-c", "20-23") as pid:
        seen["no memory near"] = resident(pid, "--gpus", "6")
    return {name: [it["status"], it["stdout"]] for name, it in seen.items()}


def shrinking() -> dict[str, Any]:
    """Return a rank's mask, and what is found of it, as its cpuset shrinks and grows."""
    group = cgroup("job", cpus="8-15")
    with running(program("rank"), group=group, cpus="12-15") as pid:

        def moment(command: str, name: str) -> list[Any]:
            cgroup("job", cpus=name.partition(",")[0])
            ended = affinityd(command, f"{pid}", *FIRST_GPU)
            return [thread_masks(pid), ended["status"], ended["stdout"] + ended["stderr"]]

        return {name: moment(command, name) for name, (command, *_) in SHRINKING.items()}


def resident(pid: str, *options: str) -> Ended:
    return affinityd("verify", pid, "--resident", *options)


@contextmanager
def filled(*before: str) -> Iterator[str]:
    """Run a program that has filled memory, by way of a command; give its pid."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*before, *FILL], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "the program ended before it was ready"
        try:
            yield f"{process.pid}"
        finally:
            process.kill()


def thread_masks(pid: int) -> list[str]:
    """Return the mask of each thread, the main one first, as the kernel says."""
    tids = sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir())
    return [format_list(os.sched_getaffinity(tid)) for tid in tids]
