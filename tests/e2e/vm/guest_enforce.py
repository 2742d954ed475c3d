"""Runs in the virtual machine: a daemon keeps jobs in place there; prints what became of them.

It judges nothing: what should have become of them is said in test_enforce.py.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from affinityd.linux.memory_policy import resident_bytes
from tests.e2e.vm.driver import FACTS, LIBRARY, hold_gpus
from tests.e2e.vm.enforced import CPUSETS, JOB, PODS, TRAININGS, WIDE, given, targets
from tests.e2e.vm.inside import bring, cgroup, output, stage
from tests.e2e.vm.trained import Running, pod, say, trained
from tests.e2e.vm.warm import affinityd, serving
from tests.support.daemons import Daemon, eventually

SITE = Path("/etc/affinityd.conf")

Document = dict[str, Any]


def main() -> None:
    """Have one daemon after another pin, each in its own way."""
    bring("31", online=True)
    hold_gpus()
    SITE.write_text("AFFINITYD_CPUS=none\n")  # near CPUs alone, until the last of it
    os.environ.update(LD_LIBRARY_PATH=LIBRARY, NVML_FACTS=str(FACTS))
    report: Document = {}
    with ExitStack() as stack:
        jobs = stack.enter_context(trained())
        first, second = (
            stack.enter_context(pod(f"pod {at}", 4 + at, path)) for at, path in enumerate(PODS)
        )
        report["pids"] = {**jobs.pids, **first.pids, **second.pids}
        say(jobs, first)
        report["before"] = jobs.masks()
        stage("a daemon pins")
        with laid(first, report, "it stays"), enforcing() as daemon:
            report["pinned"] = pinned(daemon, jobs, first)
            report["rewritten"] = {cpus: rewritten(daemon, jobs, cpus) for cpus in CPUSETS}
        say(jobs, first, second)
        stage("another daemon pins, and moves memory")
        with laid(second, report, "it moves"), enforcing("--migrate-memory") as daemon:
            told = seen(daemon, lambda told: sum(told["totals"]["migrations"].values()))
            report["totals"] = told["totals"]
        stage("a daemon pins, as it is by itself")
        report["kept"] = kept(jobs)
    stage("done")
    json.dump(report, sys.stdout)


@contextmanager
def laid(pod: Running, report: Document, name: str) -> Iterator[None]:
    """Report where a pod's memory is before and after."""
    before = resident_bytes(*pod.pids.values())
    yield
    report[name] = [before, resident_bytes(*pod.pids.values())]


def pinned(daemon: Daemon, jobs: Running, pod: Running) -> Document:
    def is_done(told: Document) -> bool:  # what is told may be of a scan before the last pin
        fits = jobs.fits(targets(WIDE)) and pod.fits({"pod 0": "28-31"})
        return fits and bool(told["totals"]["pins"]["pinned"]) and not drifted(told)

    told = seen(daemon, is_done)
    masks = {**jobs.masks(), **pod.masks()}
    return {"masks": masks, "told": told, "metrics": daemon.get("/metrics").text}


def rewritten(daemon: Daemon, jobs: Running, cpus: str) -> Document:
    """Rewrite the first job's cpuset, as its scheduler does; return what becomes of its masks."""
    stage(f"the cpuset becomes {cpus}")
    cgroup(JOB, cpus=cpus)
    met: set[str] = set()
    times = {look(daemon).get("time")}

    def is_mended() -> bool:
        times.add(look(daemon).get("time"))
        masks = jobs.masks()
        met.update(mask for name in masks if name in targets(cpus) for mask in masks[name])
        return jobs.fits(targets(cpus))

    eventually(is_mended, "all is in place")
    return {"scans": len(times) - 1, "met": sorted(met), "masks": jobs.masks()}


def kept(jobs: Running) -> Document:
    """Return what a daemon does that leaves a job as many CPUs as it was given, near ones or not.

    All processes of the jobs may run on all of their job's CPUs, as Slurm starts them.
    """
    SITE.unlink()
    cgroup(JOB, cpus=WIDE)
    for name, pid in jobs.pids.items():
        output("taskset", "-acp", TRAININGS[name.partition("'")[0]].cpuset, f"{pid}")
    with enforcing() as daemon:
        told = seen(
            daemon, lambda told: jobs.fits(given()) and has(told, jobs) and not drifted(told)
        )
        return {"masks": jobs.masks(), "told": told, "audit": affinityd("audit")["stdout"]}


def has(told: Document, jobs: Running) -> bool:
    """Whether a scan reached all processes of the jobs: on a busy machine its time may be up."""
    pids = {it["pid"] for job in told["jobs"] for it in job["processes"]}
    return pids.issuperset(jobs.pids.values())


def drifted(told: Document) -> bool:
    """Whether a scan found anything to pin."""
    return any(told["summary"]["processes"]["drifted"].values())


def seen(daemon: Daemon, condition: Callable[[Document], object]) -> Document:
    """Return what is told of a scan that began after this was asked, once it is as it is to be."""
    times = {look(daemon).get("time")}
    told: Document = {}

    def is_told() -> object:
        nonlocal told
        told = look(daemon)
        times.add(told.get("time"))
        return len(times) > 2 and condition(told)  # the first had begun before

    eventually(is_told, "what is told is as it is to be")
    return told


def look(daemon: Daemon) -> Document:
    """Return what is told now; {} before the first scan."""
    reply = daemon.get("/enforce")
    return dict(reply.json) if reply.status == HTTPStatus.OK else {}


@contextmanager
def enforcing(*arguments: str) -> Iterator[Daemon]:
    daemon = serving("--scan-interval", "1", "--enforce", "pin", *arguments)
    try:
        yield daemon
    finally:
        daemon.stop()
