"""A scan in the child process: its judgment as metrics, documents and log lines."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from gzip import compress
from typing import TypeVar

from prometheus_client import generate_latest
from prometheus_client.core import Metric

from affinityd.audit.document import ALL, COUNTS, AuditGpuDocument, document
from affinityd.audit.findings import IS_GONE, LOST
from affinityd.audit.model import NO_NAMES, ContainerNames, Scan
from affinityd.audit.remedies import RESCAN, reset_gpu
from affinityd.config.settings import Settings
from affinityd.daemon.metrics import audit as audit_metrics
from affinityd.daemon.metrics.audit import JobSeries
from affinityd.daemon.state.scans import GZIP, METRICS, ScanResult
from affinityd.grouping import Recent
from affinityd.json_codec import dumps
from affinityd.linux.processes import since_boot
from affinityd.topology.model import Gpu, Topology, keys_before
from affinityd.topology.nearness import MIXED, REMOTE

log = logging.getLogger(__name__)

Place = tuple[str, int]
AnyGpu = TypeVar("AnyGpu", Gpu, AuditGpuDocument)


class Scanning:
    """Scans, and follows jobs and lost GPUs from scan to scan."""

    def __init__(
        self, settings: Settings, scan: Callable[[Topology, ContainerNames], Scan]
    ) -> None:
        self._scan = scan
        self._log = AuditLog()
        self._jobs = JobSeries(settings.job_series)
        self._metrics: Iterable[Metric] = ()
        self._topology: Topology | None = None

    def scan(self, topology: Topology, containers: ContainerNames = NO_NAMES) -> ScanResult:
        """Scan once; return the documents and metrics that the daemon serves."""
        scan = self._scan(topology, containers)
        if self._topology is not None and self._topology is not topology:
            self._jobs.renumber(keys_before(self._topology, topology))
        self._topology = topology
        counts = document(topology, scan, names_all=False)
        self._log.scanned(scan, counts.gpus)
        texts = {
            ALL: f"{dumps(document(topology, scan, names_all=True))}\n".encode(),
            COUNTS: f"{dumps(counts)}\n".encode(),
        }
        texts |= {f"{name}{GZIP}": compress(text, 1) for name, text in texts.items()}
        scan = replace(scan, seconds=since_boot() - scan.boot)  # includes the time for documents
        self._metrics = audit_metrics.metrics(scan, counts.gpus, self._jobs.scanned(scan))
        texts[METRICS] = generate_latest(self)
        return ScanResult(scan.boot, texts)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the last scan, for prometheus_client."""
        return self._metrics


class AuditLog:
    """Logs when a GPU is lost or used from far away, and when that ends; logs a notice once."""

    def __init__(self) -> None:
        self._notices: Recent[str, None] = Recent()
        self._lost: set[Place] = set()
        self._far: set[Place] = set()

    def scanned(self, scan: Scan, gpus: Sequence[AuditGpuDocument]) -> None:
        """Log the changes of a new scan; `gpus`: from its document of counts."""
        self._notices.begin(scan.boot)
        for notice in filter(self._notices.is_news, scan.notices):
            log.warning("%s", notice)
        lost: dict[Place, str] = {}
        for place, gpu in by_place(gpus):
            if gpu.state == LOST:
                lost[place] = f"{_name(gpu)}: {gpu.unknown}; {reset_gpu(gpu.pci_bus_id)}"
        for place, gone in by_place(scan.gone):
            lost[place] = f"{_name(gone)}: {IS_GONE}; {RESCAN}"
        for place in sorted(lost.keys() - self._lost):
            log.error("lost or hung: %s", lost[place])
        for address, _ in sorted(self._lost - lost.keys()):
            log.info("not lost any more: the GPU at %s", address)
        self._lost = {*lost}
        self._tell_far(gpus)

    def _tell_far(self, gpus: Sequence[AuditGpuDocument]) -> None:
        far: dict[Place, str] = {}
        unseen: set[Place] = set()
        for place, gpu in by_place(gpus):
            if gpu.state in {MIXED, REMOTE} and gpu.mismatch is not None:
                causes = [cause for cause, number in gpu.mismatch.items() if number]
                far[place] = f"{_name(gpu)}: {' and '.join(causes)}"
            if not gpu.audited:
                unseen.add(place)
        for place in sorted(far.keys() - self._far):
            log.warning("used from far away: %s; see affinityd audit", far[place])
        for address, _ in sorted(self._far - far.keys() - unseen):
            log.info("no longer used from far away: the GPU at %s", address)
        self._far = far.keys() | self._far & unseen


def by_place(gpus: Iterable[AnyGpu]) -> Iterator[tuple[Place, AnyGpu]]:
    """Yield each GPU with its PCI address and its number there: one address may have partitions.

    The index would not do: after a GPU is gone, another GPU has its index.
    """
    parts: Counter[str] = Counter()
    for gpu in gpus:
        yield (gpu.pci_bus_id, parts[gpu.pci_bus_id]), gpu
        parts[gpu.pci_bus_id] += 1


def _name(gpu: Gpu | AuditGpuDocument) -> str:
    return f"{gpu.vendor} GPU {gpu.index} ({gpu.pci_bus_id})"
