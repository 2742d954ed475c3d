"""Runs in the virtual machine: a daemon keeps jobs in place there; prints what became of them.

It judges nothing: what should have become of them is said in test_enforce.py.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from typing import Any

from affinityd.linux.memory_policy import resident_bytes
from tests.e2e.vm.driver import have_driver
from tests.e2e.vm.enforced import CPUSETS, JOB, POD_GPUS, WIDE, targets
from tests.e2e.vm.inside import bring, cgroup, stage
from tests.e2e.vm.trained import Running, pod, say, trained
from tests.e2e.vm.warm import serving
from tests.support.daemons import Daemon, eventually

Document = dict[str, Any]


def main() -> None:
    """Have one daemon after another pin, each in its own way."""
    bring("31", online=True)
    have_driver()
    os.environ["AFFINITYD_CPUS"] = "none"  # near CPUs alone, however few
    report: Document = {}
    with ExitStack() as stack:
        job = stack.enter_context(trained())
        first, second = (stack.enter_context(pod(*it)) for it in POD_GPUS.items())
        say(job, first)
        report["before"] = job.masks()
        stage("a daemon pins")
        with laid(first, report, "it stays"), enforcing() as daemon:
            report["pinned"] = pinned(daemon, job, first)
            report["rewritten"] = {cpus: rewritten(daemon, job, cpus) for cpus in CPUSETS}
        say(job, first, second)
        stage("another daemon pins, and moves memory")
        with laid(second, report, "it moves"), enforcing("--migrate-memory") as daemon:
            eventually(lambda: sum(totals(daemon, "migrations").values()), "memory has moved")
            report["anew"] = look(daemon)["totals"]
    stage("done")
    json.dump(report, sys.stdout)


@contextmanager
def laid(pod: Running, report: Document, name: str) -> Iterator[None]:
    """Report where a pod's memory is before and after."""
    before = resident_bytes(*pod.pids.values())
    yield
    report[name] = [before, resident_bytes(*pod.pids.values())]


def pinned(daemon: Daemon, job: Running, pod: Running) -> Document:
    eventually(lambda: job.fits(targets(WIDE)) and pod.fits({"pod": "28-31"}), "all is in place")
    times = {look(daemon).get("time")}

    def has_scanned_since() -> bool:
        times.add(look(daemon).get("time"))
        return len(times) > 2  # the first had begun before

    eventually(has_scanned_since, "what is told is of all of them")
    masks = {**job.masks(), **pod.masks()}
    metrics = daemon.get("/metrics").text
    return {"masks": masks, "totals": look(daemon)["totals"], "metrics": metrics}


def rewritten(daemon: Daemon, job: Running, cpus: str) -> Document:
    """Rewrite the job's cpuset, as its scheduler does; return what becomes of its masks."""
    stage(f"the cpuset becomes {cpus}")
    cgroup(JOB, cpus=cpus)
    met: set[str] = set()
    times = {look(daemon).get("time")}

    def is_mended() -> bool:
        times.add(look(daemon).get("time"))
        met.update(mask for masks in job.masks().values() for mask in masks)
        return job.fits(targets(cpus))

    eventually(is_mended, "all is in place")
    return {"scans": len(times) - 1, "met": sorted(met), "masks": job.masks()}


def totals(daemon: Daemon, of: str) -> dict[str, int]:
    """Return one of the counts by outcome; {} before the first scan."""
    return dict(look(daemon).get("totals", {}).get(of, {}))


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
