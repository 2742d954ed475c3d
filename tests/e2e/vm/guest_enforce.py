"""Runs in the virtual machine: a daemon keeps pods in place there; prints what became of them.

It judges nothing: that does test_enforce.py. NVIDIA's library says from facts who uses which GPU;
processes, cgroups and memory are real.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from affinityd.linux.memory_policy import resident_bytes
from tests.e2e.vm.inside import (
    Document,
    bring,
    cgroup,
    filled,
    have_driver,
    nested,
    stage,
    tell,
    thread_masks,
)
from tests.e2e.vm.warm import serving
from tests.support.daemons import Daemon, eventually

#: The cpusets of the first pod, one after the other, and where its process is to run.
PLACES = {"8-11,28-31": "28-31", "8-11,30-31": "30-31", "0-31": "28-31"}

#: The GPUs of the pods, on node 7. Their memory is on node 2.
FIRST, SECOND = 4, 5
FAR_MEMORY = ("taskset", "-c", "8-11")
GROUP = (
    "kubepods.slice/kubepods-burstable.slice/"
    "kubepods-burstable-pod{}d6f3a52_1c1e_4f0e_9d55_2f6f4b0c7a01.slice/"
    f"cri-containerd-{'3f1a' * 16}.scope"
)


def main() -> None:
    """Have one daemon after another pin, each in its own way."""
    bring("31", online=True)
    have_driver()
    os.environ["AFFINITYD_CPUS"] = "none"  # near CPUs alone, however few
    report: Document = {}
    with pod(FIRST) as first, pod(SECOND) as second:
        tell({first: [FIRST]})
        stage("a daemon pins")
        with laid(first, report, "it stays"), enforcing() as daemon:
            report["followed"] = {cpus: followed(first, cpus) for cpus in PLACES}
            told = 'affinityd_enforce_pins_total{outcome="pinned"} '
            eventually(lambda: f"{told}{len(PLACES)}.0\n" in metrics(daemon), "it has counted them")
            report["metrics"] = metrics(daemon)
        tell({first: [FIRST], second: [SECOND]})
        stage("another daemon pins")
        with enforcing() as daemon:
            eventually(lambda: pinned(daemon), "it has pinned the second pod")
            report["anew"] = look(daemon)["totals"]
    stage("done")
    json.dump(report, sys.stdout)


@contextmanager
def pod(gpu: int) -> Iterator[int]:
    """Run a pod's process that has filled memory far away."""
    with filled(*FAR_MEMORY) as pid:
        (nested(GROUP.format(gpu), next(iter(PLACES))) / "cgroup.procs").write_text(pid)
        yield int(pid)


@contextmanager
def laid(pid: int, report: Document, name: str) -> Iterator[None]:
    """Report where a pod's memory is before and after."""
    before = resident_bytes(pid)
    yield
    report[name] = [before, resident_bytes(pid)]


def followed(pid: int, cpus: str) -> list[str]:
    """Rewrite the first pod's cpuset, as its kubelet does; return what becomes of its mask."""
    stage(f"the cpuset becomes {cpus}")
    cgroup(GROUP.format(FIRST), cpus=cpus)
    met: list[str] = []

    def is_mended() -> bool:
        met.extend(thread_masks(pid))
        return met[-1] == PLACES[cpus]

    eventually(is_mended, "it is in place")
    return met


def pinned(daemon: Daemon) -> bool:
    """Whether the daemon has pinned a process."""
    return bool(look(daemon).get("totals", {}).get("threads"))


def metrics(daemon: Daemon) -> str:
    """Return the metrics; they may be a moment older than the document of the same scan."""
    return daemon.get("/metrics").text


def look(daemon: Daemon) -> Document:
    """Return what is told now; {} before the first scan."""
    reply = daemon.get("/enforce")
    return dict(reply.json) if reply.status == HTTPStatus.OK else {}


@contextmanager
def enforcing() -> Iterator[Daemon]:
    daemon = serving("--scan-interval", "1", "--enforce", "pin")
    try:
        yield daemon
    finally:
        daemon.stop()
