"""What a scan finds that the one before did not, as log lines: one a GPU, whatever runs on it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from affinityd.audit.document import counts
from affinityd.audit.model import GpuKey
from affinityd.scanner import Audit
from affinityd.topology import Gpu

log = logging.getLogger(__name__)


class AuditLog:
    """Says once what has come, and once that it is gone."""

    def __init__(self) -> None:
        self._mismatched: Mapping[GpuKey, Counter[str]] = {}  # how many processes, by cause
        self._notices: tuple[str, ...] = ()

    def scanned(self, audit: Audit) -> None:
        """Tell of a new scan."""
        for notice in audit.scan.notices:
            if notice not in self._notices:
                log.warning("%s", notice)
        self._notices = audit.scan.notices
        before = self._mismatched
        now = {gpu: its.causes for gpu, its in counts(audit.scan).items() if its.causes}
        # What cannot be seen is as it was.
        now |= {key: before[key] for key in before.keys() & audit.scan.unknown.keys()}
        for gpu in audit.topology.gpus:
            if gpu.key in now and gpu.key not in before:
                log.warning("%s", _appeared(gpu, now[gpu.key]))
            elif gpu.key in before and gpu.key not in now:
                log.info("%s: its processes are near it again, or gone", _name(gpu))
        self._mismatched = now


def _appeared(gpu: Gpu, causes: Counter[str]) -> str:
    listed = ", ".join(f"{cause}: {number}" for cause, number in sorted(causes.items()))
    processes = f"{causes.total()} of its processes may run far from it"
    return f"{_name(gpu)}: {processes} ({listed}); see affinityd audit"


def _name(gpu: Gpu) -> str:
    return f"{gpu.vendor} GPU {gpu.index} ({gpu.pci_bus_id})"
