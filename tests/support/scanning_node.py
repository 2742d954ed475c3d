"""A real daemon that scans, on a node with two CPUs and two GPUs near each CPU."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from affinityd.audit.document import AuditDocument
from tests.support.daemons import Daemon, eventually
from tests.support.documents import exactly
from tests.support.made_nodes import DRIVER, running_on
from tests.support.paths import open_folder
from tests.support.shared_objects import environment
from tests.support.tiny import FAR, NEAR, tiny

Counts = Mapping[str, float]


@dataclass
class AskedNode:
    daemon: Daemon
    folder: Path

    def tell(self, facts: str) -> None:
        environment(facts, self.folder)

    def audit(self) -> Any:  # noqa: ANN401 - a document
        reply = self.daemon.get("/audit")
        assert reply.status == 200, reply.text
        exactly(AuditDocument, reply.body)
        return reply.json

    def samples(self, name: str, label: str = "pci_bus_id") -> Counts:
        """Return a metric's samples: value of a label → sum of the samples with that value."""
        rows = re.findall(
            rf"^affinityd_{name}(?:\{{(.*)\}})? (\S+)$",
            self.daemon.get("/metrics").text,
            re.MULTILINE,
        )
        found: dict[str, float] = {}
        for labels, value in rows:
            key = dict(re.findall(r'(\w+)="(.*?)"', labels)).get(label, "")
            found[key] = found.get(key, 0.0) + float(value)
        return found

    def wait_for_scans(self, number: int) -> None:
        times = {self.audit()["time"]}

        def have_come() -> bool:
            times.add(self.audit()["time"])
            return len(times) > number

        eventually(have_come, f"there are {number} new scans")


LISTED = "nvmlDeviceGetComputeRunningProcesses"
GPUS = (NEAR, NEAR, FAR, FAR)  #: GPU → the CPU that is near it

#: GPU → the processes that use it; None: NVML does not say which.
Users = Mapping[int, Sequence[int] | None]


@dataclass
class ScanningNode(AskedNode):
    def say(self, users: Users, fault: str = "") -> None:
        """Make NVML list these processes, or fail, from the next scan on."""
        self.tell(facts(users, fault))


def facts(users: Users, fault: str = "") -> str:
    lines = [f"driver {DRIVER}", fault]
    for gpu, cpu in enumerate(GPUS):
        lines += ["gpu", f"uuid {uuid(gpu)}", f"minor {gpu}", f"pci 0000{address(gpu)}"]
        pids = users.get(gpu, ())
        lines += [f"node {cpu}", *(f"process compute {pid} {2**30}" for pid in pids or ())]
        lines += [f"fail {LISTED}_v{version} 4" for version in (2, 3) if pids is None]
    return "\n".join([*lines, ""])


def uuid(gpu: int) -> str:
    return f"GPU-{gpu}a1f0c3e-51aa-9d02-4c1e-0b7de3f1a001"


def address(gpu: int) -> str:
    return f"0000:{0xE1 + gpu:02x}:00.0"


@contextmanager
def scanning(
    *arguments: str,
    users: Users | None = None,
    **how: Any,  # noqa: ANN401 - what `spawn` takes
) -> Iterator[ScanningNode]:
    """Run a daemon that scans every second; the block begins after its first scan."""
    nvml, scans = facts(users or {}), ("--scan-interval", "1")
    with (
        open_folder() as folder,
        running_on(tiny(), folder, nvml, *scans, *arguments, **how) as daemon,
    ):
        eventually(lambda: daemon.get("/audit").status == 200, "there is a scan")
        yield ScanningNode(daemon, folder)
