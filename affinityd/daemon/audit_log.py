"""Log lines about scans: one when a GPU's processes come to run far from it, one when they end."""

from __future__ import annotations

import logging
from collections import Counter

from affinityd.audit.describe import counts
from affinityd.daemon.state.audits import Audit
from affinityd.topology.model import Gpu

log = logging.getLogger(__name__)


class AuditLog:
    """Logs each finding once, and once more when it is over."""

    def __init__(self) -> None:
        # By GPU, also by its address: when one is gone, its index may be another GPU's.
        self._mismatched: dict[str, Counter[str]] = {}  # how many processes, by cause
        self._notices: tuple[str, ...] = ()

    def scanned(self, audit: Audit) -> None:
        """Tell of a new scan."""
        for notice in audit.scan.notices:
            if notice not in self._notices:
                log.warning("%s", notice)
        self._notices = audit.scan.notices
        before, self._mismatched = self._mismatched, {}
        counted = counts(audit.scan)
        for gpu in audit.topology.gpus:
            name, causes = _name(gpu), counted[gpu.key].causes
            if gpu.key in audit.scan.unknown:  # unseen processes stay as they were
                causes = before.get(name, Counter())
            if causes:
                self._mismatched[name] = causes
            if causes and name not in before:
                log.warning("%s", _appeared(name, causes))
            elif name in before and not causes:
                log.info("%s: its processes are near it again, or have ended", name)


def _appeared(name: str, causes: Counter[str]) -> str:
    listed = ", ".join(f"{cause}: {number}" for cause, number in sorted(causes.items()))
    processes = f"{causes.total()} of its processes may run far from it"
    return f"{name}: {processes} ({listed}); see affinityd audit"


def _name(gpu: Gpu) -> str:
    return f"{gpu.vendor} GPU {gpu.index} ({gpu.pci_bus_id})"
