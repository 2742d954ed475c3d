"""Runs in the virtual machine: a daemon keeps jobs in place there; prints what became of them.

It judges nothing: what should have become of them is said in test_enforce.py.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from affinityd.linux import memory_policy
from affinityd.linux.processes import everyone, mask_of, thread_ids, thread_stat
from tests.e2e.vm.enforced import (
    BROKEN,
    CPUSETS,
    JOB,
    PODS,
    RANKS,
    TRAININGS,
    UNIQUE,
    WIDE,
    given,
    parted,
    targets,
)
from tests.e2e.vm.guest_audit import FACTS, LIBRARY, hold_gpus
from tests.e2e.vm.inside import bring, cgroup, output, serving, stage
from tests.e2e.vm.trained import Running, pod, say, trained
from tests.e2e.vm.warm import affinityd
from tests.support.daemons import Daemon, eventually

POLICY = Path("/tmp/policy.toml")  # noqa: S108 - nobody else is here
SITE = Path("/etc/affinityd.conf")
FEW = 2  #: times of scans, of which the last may have begun before

Document = dict[str, Any]


def main() -> None:
    """Have the daemon observe, pin, and pin again when it is started anew."""
    bring("31", online=True)
    hold_gpus()
    SITE.write_text("AFFINITYD_CPUS=none\n")  # near CPUs alone, until the last of it
    os.environ.update(LD_LIBRARY_PATH=LIBRARY, NVML_FACTS=str(FACTS))
    report: dict[str, Any] = {}
    with ExitStack() as stack:
        jobs = stack.enter_context(trained())
        first, second = (
            stack.enter_context(pod(f"pod {at}", 4 + at, path)) for at, path in enumerate(PODS)
        )
        report["pids"] = {**jobs.pids, **first.pids, **second.pids}
        say(jobs, first)
        report["observed"] = observed()
        report.update(pinned(jobs, first))
        say(jobs, first, second)
        report.update(pinned_anew(jobs, first, second))
        report["kept"] = kept(jobs)
    stage("done")
    json.dump(report, sys.stdout)


def observed() -> dict[str, Any]:
    stage("a daemon observes")
    with enforcing("observe") as daemon:
        before = masks_of_all()
        seen(daemon, lambda told: not told["summary"]["processes"]["left"]["young"])
        told = seen(daemon, lambda _: True)
        metrics = daemon.get("/metrics").text
        return {"before": before, "after": masks_of_all(), "told": told, "metrics": metrics}


def pinned(jobs: Running, first: Running) -> dict[str, Any]:
    """Return what becomes of the jobs while a daemon pins and things happen to them."""
    stage("a daemon pins")
    lay = memory_policy.resident_bytes(*first.pids.values())
    report: dict[str, Any] = {"before": {**jobs.masks(), **first.masks()}}
    with enforcing("pin") as daemon:
        until(daemon, lambda: jobs.fits(targets(WIDE)) and first.fits({"pod 0": "28-31"}))
        report["pinned"] = {
            "masks": {**jobs.masks(), **first.masks()},
            "told": seen(daemon, lambda _: True),
            "metrics": daemon.get("/metrics").text,
        }
        stage("workers unpin themselves")
        report["unpinned"] = unpinned(daemon, jobs)
        report["rewritten"] = {cpus: rewritten(daemon, jobs, cpus) for cpus in CPUSETS}
    report["it stays"] = [lay, memory_policy.resident_bytes(*first.pids.values())]
    return report


def pinned_anew(jobs: Running, first: Running, second: Running) -> dict[str, Any]:
    """Return what another daemon does, which moves memory and has a policy."""
    stage("another daemon pins, and moves memory")
    POLICY.write_text("# Everything as it is by itself.\n")
    report: dict[str, Any] = {}
    before = {**jobs.masks(), **first.masks()}
    lay = memory_policy.resident_bytes(*second.pids.values())
    with enforcing("pin", "--migrate-memory", "--enforce-policy", f"{POLICY}") as daemon:
        told = seen(daemon, lambda told: sum(told["totals"]["migrations"].values()))
        report["it moves"] = [lay, memory_policy.resident_bytes(*second.pids.values())]
        after = {**jobs.masks(), **first.masks()}
        report["restarted"] = {"before": before, "after": after, "told": told}
        stage("a policy")
        POLICY.write_text(UNIQUE)
        until(daemon, lambda: jobs.fits(parted()))
        report["a policy"] = {"masks": jobs.masks(), "told": seen(daemon, lambda _: True)}
        stage("a broken policy")
        POLICY.write_text(BROKEN)
        told = seen(daemon, lambda told: told["policy"]["error"])
        report["a broken policy"] = {"masks": jobs.masks(), "told": told}
    return report


def kept(jobs: Running) -> dict[str, Any]:
    """Return what a daemon does that leaves a job as many CPUs as it was given, near ones or not.

    All processes of the jobs may run on all of their job's CPUs, as Slurm starts them.
    """
    stage("a daemon pins, as it is by itself")
    SITE.unlink()
    cgroup(JOB, cpus=WIDE)
    for name, pid in jobs.pids.items():
        output("taskset", "-acp", TRAININGS[name.partition("'")[0]].cpuset, f"{pid}")
    with enforcing("pin") as daemon:
        until(daemon, lambda: jobs.fits(given()))
        told = seen(daemon, lambda _: True)
        return {"masks": jobs.masks(), "told": told, "audit": affinityd("audit")}


def unpinned(daemon: Daemon, jobs: Running) -> Document:
    """Have the workers of the first job unpin themselves; return what is told as it is mended."""
    workers = [jobs.pids[f"{rank}'s worker {at}"] for rank in RANKS for at in (0, 1)]
    for pid in workers:
        os.kill(pid, signal.SIGUSR1)
    told = seen(daemon, lambda told: all(it["resets"] for it in of(told, workers)))
    until(daemon, lambda: jobs.fits(targets(WIDE)))
    return {"masks": jobs.masks(), "told": told}


def rewritten(daemon: Daemon, jobs: Running, cpus: str) -> dict[str, Any]:
    """Rewrite the first job's cpuset, as its scheduler does; return what becomes of its masks."""
    stage(f"the cpuset becomes {cpus}")
    cgroup(JOB, cpus=cpus)
    met: set[str] = set()

    def is_mended() -> bool:
        masks = jobs.masks()
        met.update(mask for name in masks if name in targets(cpus) for mask in masks[name])
        return jobs.fits(targets(cpus))

    scans = until(daemon, is_mended)
    return {"scans": scans, "met": sorted(met), "masks": jobs.masks()}


def until(daemon: Daemon, condition: Callable[[], object]) -> int:
    """Wait until something holds; return how many scans have been followed by then."""
    times = {look(daemon).get("time")}

    def holds() -> object:
        times.add(look(daemon).get("time"))
        return condition()

    eventually(holds, "all is in place")
    return len(times) - 1


def seen(daemon: Daemon, condition: Callable[[Document], object]) -> Document:
    """Return what is told of a scan that began after this was asked, once it is as it is to be."""
    times = {look(daemon).get("time")}
    told: Document = {}

    def is_told() -> object:
        nonlocal told
        told = look(daemon)
        times.add(told.get("time"))
        return len(times) > FEW and condition(told)

    eventually(is_told, "what is told is as it is to be")
    return told


def look(daemon: Daemon) -> Document:
    """Return what is told now; {} before the first scan."""
    reply = daemon.get("/enforce")
    return dict(reply.json) if reply.status == HTTPStatus.OK else {}


def of(told: Document, pids: Sequence[int]) -> list[Document]:
    """Return what is told of some processes."""
    return [it for job in told["jobs"] for it in job["processes"] if it["pid"] in pids]


@contextmanager
def enforcing(*arguments: str) -> Iterator[Daemon]:
    daemon = serving("--scan-interval", "1", "--enforce", *arguments)
    try:
        yield daemon
    finally:
        daemon.stop()


def masks_of_all() -> dict[str, list[int]]:
    """Return the mask of every thread of the machine, by its number and start."""
    tids = ((stat.number, tid) for stat in everyone() for tid in thread_ids(stat.number))
    found = ((tid, thread_stat(pid, tid), mask_of(tid)) for pid, tid in tids)
    return {
        f"{tid} {stat.start}": sorted(mask)
        for tid, stat, mask in found
        if stat is not None and mask is not None
    }


if __name__ == "__main__":
    main()
