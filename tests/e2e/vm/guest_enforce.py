"""Runs in the virtual machine: a daemon keeps pods in place there.

NVIDIA's library says from facts who uses which GPU; processes and cgroups are real.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from http import HTTPStatus

from tests.e2e.vm import inside
from tests.e2e.vm.inside import Document, cgroup, nested, program, running, stage, thread_masks
from tests.e2e.vm.warm import serving
from tests.support.daemons import Daemon, eventually

#: The cpusets of the first pod, one after the other, and where its process is to run.
PLACES = {"8-11,28-31": "28-31", "8-11,30-31": "30-31", "0-31": "28-31"}

FIRST, SECOND = 4, 5  #: the GPUs of the pods, on node 7
GROUP = (
    "kubepods.slice/kubepods-burstable.slice/"
    "kubepods-burstable-pod{}d6f3a52_1c1e_4f0e_9d55_2f6f4b0c7a01.slice/"
    f"cri-containerd-{'3f1a' * 16}.scope"
)


def main() -> Document:
    inside.bring("31", online=True)
    inside.have_driver()
    os.environ["AFFINITYD_CPUS"] = "none"  # near CPUs alone, however few
    report: Document = {}
    with pod(FIRST) as first, pod(SECOND) as second:
        inside.tell({first: [FIRST]})
        stage("a daemon pins")
        with enforcing() as daemon:
            report["followed"] = {cpus: followed(first, cpus) for cpus in PLACES}
            counted = f'affinityd_enforce_pins_total{{outcome="pinned"}} {len(PLACES)}.0\n'
            eventually(lambda: counted in metrics(daemon), "it has counted them")
            report["metrics"] = metrics(daemon)
        inside.tell({first: [FIRST], second: [SECOND]})
        stage("another daemon pins")
        with enforcing() as daemon:
            eventually(lambda: enforced(daemon).get("threads"), "it has pinned the second pod")
            report["anew"] = enforced(daemon)
    return report


def pod(gpu: int) -> AbstractContextManager[int]:
    return running(program("train"), group=nested(GROUP.format(gpu), next(iter(PLACES))))


def followed(pid: int, cpus: str) -> list[str]:
    """Rewrite the first pod's cpuset, as its kubelet does; return what becomes of its mask."""
    stage(f"the cpuset becomes {cpus}")
    cgroup(GROUP.format(FIRST), cpus=cpus)
    masks: list[str] = []

    def is_in_place() -> bool:
        masks.extend(thread_masks(pid))
        return masks[-1] == PLACES[cpus]

    eventually(is_in_place, "it is in place")
    return masks


def metrics(daemon: Daemon) -> str:
    """Return the metrics; they may be a moment older than the document of the same scan."""
    return daemon.get("/metrics").text


def enforced(daemon: Daemon) -> Document:
    """Return the totals of enforcement; {} before the first scan."""
    reply = daemon.get("/enforce")
    return dict(reply.json["totals"]) if reply.status == HTTPStatus.OK else {}


@contextmanager
def enforcing() -> Iterator[Daemon]:
    daemon = serving("--scan-interval", "1", "--enforce", "pin")
    try:
        yield daemon
    finally:
        daemon.stop()
