"""Runs in the virtual machine: has processes use its GPUs here and there, and audits them.

NVIDIA's driver is made (inside.py); processes, masks, cgroups and memory are real.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.e2e.vm.inside import (
    Document,
    Ended,
    bring,
    filled,
    have_driver,
    nested,
    output,
    program,
    running,
    stage,
    tell,
)
from tests.e2e.vm.warm import affinityd

POD = "0d6f3a52-1c1e-4f0e-9d55-2f6f4b0c7a01"
CONTAINER = "3f1a" * 16


@dataclass(frozen=True)
class Rank:
    gpu: int  #: index; GPUs are on nodes 3, 3, 1, 1, 7, 7, 5, 5, four CPUs each
    group: str  #: its cgroup
    placement: str  #: that is to be found
    cause: str | None  #: of that
    cpus: str | None = None  #: its mask
    cpuset: str | None = None  #: its cgroup's
    program: str = "train"
    has_child: bool = False
    keeper: bool = True  #: a slurmstepd is with its step


def step(job: int, name: str = "0") -> str:
    return f"system.slice/slurmstepd.scope/job_{job}/step_{name}/user/task_0"


BURSTABLE = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable"
OF_POD = f"{BURSTABLE}-pod{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope"
OF_DAEMON = "system.slice/dcgm.service"
ALLOCATION, UNPINNED = "allocation", "unpinned"

#: By what is to be found of each.
RANKS = {
    "near": Rank(0, step(7), "local", None, cpus="12-13", has_child=True),
    "left over": Rank(1, step(8, "batch"), "local", None, cpus="12-15", keeper=False),
    "masked": Rank(2, OF_POD, "remote", "mask", cpus="0-3", cpuset="0-7", keeper=False),
    "a daemon": Rank(3, OF_DAEMON, UNPINNED, UNPINNED, program="nv-hostengine", keeper=False),
    "allocated far away": Rank(4, step(9), "remote", ALLOCATION, cpuset="16-19"),
    "given too few near": Rank(5, step(11), "mixed", ALLOCATION, cpuset="24-31"),
    "unpinned": Rank(6, step(10), UNPINNED, UNPINNED),
}

#: Has a child, as a rank has DataLoader workers.
WITH_CHILD = 'sleep 1000 & exec "$0" 1000'


def main() -> Document:
    bring("31", online=True)
    have_driver()
    with ExitStack() as stack:
        pids = {name: stack.enter_context(started(it)) for name, it in RANKS.items()}
        tell({pid: [RANKS[name].gpu] for name, pid in pids.items()})
        stage("the command")
        report: Document = {"pids": pids, "found": audit("--json"), "table": audit()}
        stage("memory")
        with filled("taskset", "-c", "8-11") as filling:  # the kernel leaves less of node 0
            output("taskset", "-acp", "12-13", filling)
            tell({int(filling): [0]})
            report["memory"] = audit("--memory", "--json")
    return report


@contextmanager
def started(rank: Rank) -> Iterator[int]:
    """Run a rank's program in its cgroup, as its scheduler makes it, on its CPUs; give its pid."""
    with ExitStack() as stack:
        if rank.keeper:  # what Slurm has beside each step's tasks
            keeper = nested(rank.group.partition("/user/")[0] + "/slurm", None)
            stack.enter_context(running(program("slurmstepd"), group=keeper))
        path = program(rank.program)
        command = ["sh", "-c", WITH_CHILD, path] if rank.has_child else [path, "1000"]
        group = nested(rank.group, rank.cpuset)
        yield stack.enter_context(running(*command, group=group, cpus=rank.cpus))


def audit(*words: str) -> Ended:
    """Return what the command said, once NVML has answered in time: an emulated CPU is slow."""
    ended = affinityd("audit", *words)
    while "NVML did not answer" in ended["stdout"]:
        ended = affinityd("audit", *words)
    return ended
