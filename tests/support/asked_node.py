"""A real daemon on a made node, and what its tests ask of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from affinityd.audit.document import AuditDocument
from tests.support.daemons import Daemon, eventually
from tests.support.documents import exactly
from tests.support.nvml.shared_object import environment

Counts = Mapping[str, float]


@dataclass
class AskedNode:
    """A daemon on a made node, and its folder."""

    daemon: Daemon
    folder: Path

    def tell(self, facts: str) -> None:
        """Have NVML answer by these facts, from the next scan on."""
        environment(facts, self.folder)

    def audit(self) -> Any:  # noqa: ANN401 - a document
        reply = self.daemon.get("/audit")
        assert reply.status == 200, reply.text
        exactly(AuditDocument, reply.body)
        return reply.json

    def samples(self, name: str, label: str = "pci_bus_id") -> Counts:
        """Return a metric's samples: the value of one label → the sum of those that have it."""
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

    def scans_until(self, condition: Callable[[], object], what: str) -> int:
        """Wait until something holds; return how many scans there were meanwhile."""
        times = {self.audit()["time"]}

        def holds() -> object:
            times.add(self.audit()["time"])
            return condition()

        eventually(holds, what)
        return len(times) - 1
