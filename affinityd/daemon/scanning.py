"""A scan in the child process: judged, and described by metrics, documents and log lines."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from prometheus_client import generate_latest
from prometheus_client.core import Metric

from affinityd.audit.document import ALL, COUNTS, AuditDocument, AuditGpuDocument, document
from affinityd.audit.model import NO_NAMES, ContainerNames, Scan
from affinityd.audit.remedies import RESCAN, reset_gpu
from affinityd.audit.verdict import IS_GONE, LOST
from affinityd.config.settings import Settings
from affinityd.daemon.metrics import audit as audit_metrics
from affinityd.daemon.metrics.audit import JobRow, JobSeries
from affinityd.daemon.state.scans import METRICS, ScanResult
from affinityd.grouping import Recent
from affinityd.json_codec import dumps
from affinityd.linux.processes import since_boot
from affinityd.topology.model import Gpu, Topology, keys_before

log = logging.getLogger(__name__)

Place = tuple[str, int]
AnyGpu = TypeVar("AnyGpu", Gpu, AuditGpuDocument)


class Scanning:
    """Scans, and keeps the last scan for metrics."""

    def __init__(
        self,
        settings: Settings,
        scan: Callable[[Topology, ContainerNames], Scan],
    ) -> None:
        """Take the settings and the scan."""
        self._scan = scan
        self._log = AuditLog()
        self._jobs = JobSeries(settings.job_series)
        self._rows: Sequence[JobRow] = ()
        self._gpus: Sequence[AuditGpuDocument] = ()
        self._last: tuple[Topology, Scan] | None = None

    def scan(self, topology: Topology, containers: ContainerNames = NO_NAMES) -> ScanResult:
        """Scan once, and write all that the daemon serves of it."""
        scan = self._scan(topology, containers)
        if self._last is not None and self._last[0] is not topology:
            self._jobs.renumber(keys_before(self._last[0], topology))
        counts = document(topology, scan, names_all=False)
        self._log.scanned(scan, counts.gpus)
        texts = documents(topology, scan, counts)
        whole = replace(scan, seconds=since_boot() - scan.boot)  # with what the daemon makes of it
        self._rows = self._jobs.scanned(scan)
        self._gpus = counts.gpus
        self._last = topology, whole
        texts[METRICS] = generate_latest(self)
        return ScanResult(scan.boot, texts)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the last scan."""
        if self._last is not None:
            yield from audit_metrics.metrics(self._last[1], self._gpus, self._rows)


def documents(topology: Topology, scan: Scan, counts: AuditDocument) -> dict[str, bytes]:
    """Return the documents of /audit, by their names."""
    return {
        ALL: f"{dumps(document(topology, scan, names_all=True))}\n".encode(),
        COUNTS: f"{dumps(counts)}\n".encode(),
    }


class AuditLog:
    """Logs a line when a GPU is lost or used from far away, and one when that is over."""

    def __init__(self) -> None:
        self._mismatched: dict[Place, Counter[str]] = {}  # how many processes, by cause
        self._notices: Recent[str, None] = Recent()
        self._lost: dict[Place, str] = {}  # with its name

    def scanned(self, scan: Scan, gpus: Sequence[AuditGpuDocument]) -> None:
        """Tell of a new scan; `gpus`: of its document of counts."""
        self._notices.begin(scan.boot)
        for notice in filter(self._notices.is_news, scan.notices):
            log.warning("%s", notice)
        self._tell_lost(scan, gpus)
        self._tell_far(gpus)

    def _tell_lost(self, scan: Scan, gpus: Sequence[AuditGpuDocument]) -> None:
        lost: dict[Place, str] = {}
        for place, gpu in _by_place(gpus):
            if gpu.state == LOST:
                lost[place] = _name(gpu)
                if place not in self._lost:
                    remedy = reset_gpu(gpu.pci_bus_id)
                    log.error("lost or hung: %s: %s; %s", lost[place], gpu.unknown, remedy)
        for place, gone in _by_place(scan.gone):
            lost[place] = _name(gone)
            if place not in self._lost:
                log.error("lost or hung: %s: %s; %s", lost[place], IS_GONE, RESCAN)
        for place in sorted(self._lost.keys() - lost.keys()):
            log.info("not lost any more: %s", self._lost[place])
        self._lost = lost

    def _tell_far(self, gpus: Sequence[AuditGpuDocument]) -> None:
        before = self._mismatched
        self._mismatched = {}
        for place, gpu in _by_place(gpus):
            name = _name(gpu)
            causes = before.get(place, Counter())  # unseen processes stay as they were
            if gpu.mismatch is not None:
                causes = +Counter(gpu.mismatch)
            if causes:
                self._mismatched[place] = causes
            if causes and place not in before:
                listed = ", ".join(f"{cause}: {number}" for cause, number in sorted(causes.items()))
                far = f"{causes.total()} of its processes may run far from it"
                log.warning("%s: %s (%s); see affinityd audit", name, far, listed)
            elif place in before and not causes:
                log.info("%s: its processes are near it again, or have ended", name)


def _by_place(gpus: Sequence[AnyGpu]) -> Iterator[tuple[Place, AnyGpu]]:
    """Yield each GPU with its PCI address and its number among the parts of a GPU there.

    When one is gone, its index may be another GPU's.
    """
    parts: Counter[str] = Counter()
    for gpu in gpus:
        yield (gpu.pci_bus_id, parts[gpu.pci_bus_id]), gpu
        parts[gpu.pci_bus_id] += 1


def _name(gpu: Gpu | AuditGpuDocument) -> str:
    return f"{gpu.vendor} GPU {gpu.index} ({gpu.pci_bus_id})"
