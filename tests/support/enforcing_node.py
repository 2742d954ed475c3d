"""A real daemon that scans or enforces, on a node of two CPUs and four GPUs: two near each CPU."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from affinityd.enforce.document import EnforceDocument
from tests.support.asked_node import AskedNode
from tests.support.daemons import eventually, with_constants
from tests.support.documents import exactly
from tests.support.made_nodes import DRIVER, running_on
from tests.support.puppets import GRACE
from tests.support.tiny import FAR, NEAR, tiny

GPUS = (NEAR, NEAR, FAR, FAR)  #: GPU → the CPU that is near it

#: GPU → the processes that use it.
Users = Mapping[int, Sequence[int]]


@dataclass
class EnforcingNode(AskedNode):
    """A daemon that scans or enforces, and what its NVML says."""

    def say(self, users: Users, fault: str = "") -> None:
        """Have NVML name these processes, from the next scan on, or fail."""
        self.tell(facts(users, fault))

    def enforce(self) -> Any:  # noqa: ANN401 - a document
        reply = self.daemon.get("/enforce")
        assert reply.status == 200, reply.text
        exactly(EnforceDocument, reply.body)
        return reply.json

    def processes(self) -> dict[int, Any]:
        jobs = self.enforce()["jobs"]
        return {process["pid"]: process for job in jobs for process in job["processes"]}

    def become(self, *pids: int) -> set[str]:
        """Return what is to become of these: fits, drifted, or the reason why they are left."""
        found = self.processes()
        return {
            found[pid]["reason"] or found[pid]["verdict"] if pid in found else "?" for pid in pids
        }

    def wait_until(self, what: str, *pids: int) -> None:
        eventually(lambda: self.become(*pids) == {what}, f"{pids} are {what}")

    def pins(self) -> float:
        """Return how many processes were pinned so far, whatever came of it."""
        return sum(self.samples("enforce_pins_total", "outcome").values())


def facts(users: Users, fault: str = "") -> str:
    lines = [f"driver {DRIVER}", fault]
    for gpu, cpu in enumerate(GPUS):
        lines += ["gpu", f"uuid {uuid(gpu)}", f"minor {gpu}", f"pci 0000{address(gpu)}"]
        lines += [f"node {cpu}", *(f"process compute {pid} {2**30}" for pid in users.get(gpu, ()))]
    return "\n".join([*lines, ""])


def uuid(gpu: int) -> str:
    return f"GPU-{gpu}a1f0c3e-51aa-9d02-4c1e-0b7de3f1a001"


def address(gpu: int) -> str:
    return f"0000:{0xE1 + gpu:02x}:00.0"


@contextmanager
def scanning(
    *arguments: str,
    users: Users | None = None,
    run: Path | None = None,
    before: Sequence[str] = (),
    listen: str = "none",
) -> Iterator[EnforcingNode]:
    """Run a daemon that scans every second, from its first scan on.

    `run`: the folder that another one has as /run, else it has its own; `before`: what runs it.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, nvml = Path(name), facts(users or {})
        folder.chmod(0o755)
        if run is not None:
            (folder / "run").symlink_to(run)
        settings = ("--scan-interval", "1", *arguments)
        with running_on(tiny(), folder, nvml, *settings, before=before, listen=listen) as daemon:
            eventually(lambda: daemon.get("/audit").status == 200, "there is a scan")
            yield EnforcingNode(daemon, folder)


@contextmanager
def enforcing(
    way: str,
    *arguments: str,
    users: Users | None = None,
    run: Path | None = None,
    before: Sequence[str] = (),
    listen: str = "none",
) -> Iterator[EnforcingNode]:
    """Run a daemon that enforces, likewise, and lets what starts alone for one second."""
    sooner = with_constants(enforce__decide__GRACE=GRACE)
    settings = ("--enforce", way, *arguments)
    words = (*before, *sooner)
    with scanning(*settings, users=users, run=run, before=words, listen=listen) as node:
        eventually(lambda: node.daemon.get("/enforce").status == 200, "it has enforced")
        yield node
