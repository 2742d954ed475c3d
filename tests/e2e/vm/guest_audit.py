"""Runs in the virtual machine: has processes use its GPUs here and there, and prints what is found.

It judges nothing: what should have been found is said in test_audit.py. NVIDIA's driver is made
(driver.py); processes, masks, cgroups and memory are real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from tests.e2e.vm.driver import FACTS, LIBRARY, hold_gpus, tell
from tests.e2e.vm.holders import RANKS, Rank
from tests.e2e.vm.inside import Ended, bring, nested, output, stage
from tests.e2e.vm.mending import filled
from tests.e2e.vm.stand_ins import program, running
from tests.e2e.vm.warm import affinityd, serving
from tests.support.daemons import Daemon, eventually

#: Has a child, as a rank has DataLoader workers.
WITH_CHILD = 'sleep 1000 & exec "$0" 1000'
OWN_GPUS = {name: [rank.gpu] for name, rank in RANKS.items()}


def main() -> None:
    """Start the ranks, and look at them as they are moved."""
    bring("31", online=True)
    hold_gpus()
    os.environ.update(LD_LIBRARY_PATH=LIBRARY, NVML_FACTS=str(FACTS), AFFINITYD_SCAN_INTERVAL="2")
    with ExitStack() as stack:
        pids = {name: stack.enter_context(started(it)) for name, it in RANKS.items()}

        def use(**others: int) -> None:
            tell({pid: OWN_GPUS[name] for name, pid in {**pids, **others}.items()})

        use()
        stage("the daemon starts")
        daemon = serving()
        report: dict[str, Any] = {"pids": pids}
        report["at first"] = scanned(daemon)
        report["metrics"] = daemon.get("/metrics").text
        stage("the command")
        report["command"] = audit("--json")
        report["table"] = audit()
        stage("repinned")
        output("taskset", "-acp", "4-5", f"{pids['masked']}")
        report["repinned"] = scanned(daemon)
        stage("a rank turns, far away")
        with turning("28-29") as pid:
            use(near=pid)
            scanned(daemon)
            scanned(daemon)
        report["turned"] = daemon.get("/metrics").text
        stage("memory")
        with filled("taskset", "-c", "8-11") as filling:  # the kernel leaves less of node 0
            output("taskset", "-acp", "12-13", filling)
            use(near=int(filling))
            report["memory"] = audit("--memory", "--json")
        daemon.stop()
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


@contextmanager
def turning(cpus: str) -> Iterator[int]:
    """Run a rank that does nothing but use CPU time, and leaves some: it is one CPU's in truth."""
    code = "while :; do n=0; while [ $n -lt 5000 ]; do n=$((n + 1)); done; sleep 0.3; done"
    with subprocess.Popen(["taskset", "-c", cpus, "sh", "-c", code]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def audit(*words: str) -> Ended:
    """Return what the command said, once NVML has answered in time: an emulated CPU is slow."""
    ended = affinityd("audit", *words)
    while "NVML did not answer" in ended["stdout"]:
        ended = affinityd("audit", *words)
    return ended


def scanned(daemon: Daemon) -> Any:  # noqa: ANN401 - a document
    """Return what a scan found that began after this was asked."""
    for _ in range(2):
        eventually(partial(has_scanned_since, daemon, time_of(daemon)), "a scan")
    return daemon.get("/audit").json


def has_scanned_since(daemon: Daemon, time: str | None) -> bool:
    """Whether there is another scan by now, to which NVML has answered in time."""
    return time_of(daemon) not in {None, time}


def time_of(daemon: Daemon) -> str | None:
    reply = daemon.get("/audit")
    is_told = reply.status == 200 and all(gpu["audited"] for gpu in reply.json["gpus"])
    return str(reply.json["time"]) if is_told else None
