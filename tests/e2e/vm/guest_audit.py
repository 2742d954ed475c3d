"""Runs in the virtual machine: has processes use its GPUs here and there, and prints what is found.

It judges nothing: what should have been found is said in test_audit.py. NVIDIA's driver is made
(driver.py); processes, masks, cgroups and memory are real.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.e2e.vm.driver import have_driver, tell
from tests.e2e.vm.holders import RANKS, Rank
from tests.e2e.vm.inside import Ended, bring, nested, output, stage
from tests.e2e.vm.mending import filled
from tests.e2e.vm.stand_ins import program, running
from tests.e2e.vm.warm import affinityd

#: Has a child, as a rank has DataLoader workers.
WITH_CHILD = 'sleep 1000 & exec "$0" 1000'


def main() -> None:
    """Start the ranks, and look at them."""
    bring("31", online=True)
    have_driver()
    with ExitStack() as stack:
        pids = {name: stack.enter_context(started(it)) for name, it in RANKS.items()}
        tell({pid: [RANKS[name].gpu] for name, pid in pids.items()})
        stage("the command")
        report: dict[str, Any] = {"pids": pids, "found": audit("--json"), "table": audit()}
        stage("memory")
        with filled("taskset", "-c", "8-11") as filling:  # the kernel leaves less of node 0
            output("taskset", "-acp", "12-13", filling)
            tell({int(filling): [0]})
            report["memory"] = audit("--memory", "--json")
    stage("done")
    json.dump(report, sys.stdout)


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
