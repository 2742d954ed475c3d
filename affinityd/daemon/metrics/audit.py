"""What a scan found, as Prometheus metrics: GPUs by their labels, jobs by theirs, never a pid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, Metric

from affinityd.audit.describe import Counts, counts
from affinityd.audit.model import CpuTime, Scan
from affinityd.daemon.metrics.families import (
    GPU_LABELS,
    MetricFamily,
    each,
    filled,
    gpu_labels,
    one,
    whole,
)
from affinityd.daemon.metrics.job_series import JobRow
from affinityd.daemon.state.scanner import Audit
from affinityd.text import one_line
from affinityd.topology.model import Gpu
from affinityd.topology.nearness import CAUSES, PLACEMENTS

JOB_LABELS = ("scheduler", "job_id")


@dataclass(frozen=True)
class GpuView:
    """One GPU of a scan."""

    gpu: Gpu
    scan: Scan
    counts: Counts

    @property
    def is_audited(self) -> bool:
        """Whether its processes are known."""
        return self.gpu.key not in self.scan.unknown

    @property
    def is_placed(self) -> bool:
        """Whether its near CPUs are known."""
        return self.scan.near[self.gpu.key] is not None

    @property
    def time(self) -> CpuTime:
        """What its processes spent."""
        return self.scan.gpu_time.get(self.gpu.key, CpuTime())

    @property
    def was_seen(self) -> bool:
        """Whether its processes are known, or were: their time stays."""
        return self.is_audited or self.time.total > 0


GPU_FAMILIES: tuple[MetricFamily[GpuView], ...] = (
    MetricFamily(
        "affinityd_gpu_audited",
        "1 if the processes that use the GPU are known, 0 if nobody says which they are.",
        lambda gpu: one(gpu.is_audited),
    ),
    MetricFamily(
        "affinityd_gpu_numa_mismatch",
        "1 if a process of the GPU may run on CPUs that are not near it, by cause; no sample where "
        "its processes or its place are not known.",
        lambda gpu: (
            (((cause,), gpu.counts.causes[cause] > 0) for cause in CAUSES)
            if gpu.is_audited and gpu.is_placed
            else ()
        ),
        ("cause",),
    ),
    MetricFamily(
        "affinityd_gpu_numa_mismatch_start_timestamp_seconds",
        "When the mismatch of the GPU was first seen, since the epoch; only while there is one.",
        lambda gpu: one(gpu.scan.since.get(gpu.gpu.key)),
    ),
    MetricFamily(
        "affinityd_gpu_processes",
        "Processes that use the GPU, and their descendants, by placement.",
        lambda gpu: each(PLACEMENTS, gpu.counts.processes) if gpu.is_audited else (),
        ("placement",),
    ),
    MetricFamily(
        "affinityd_gpu_threads",
        "Their threads, each by its own placement.",
        lambda gpu: each(PLACEMENTS, gpu.counts.threads) if gpu.is_audited else (),
        ("placement",),
    ),
    MetricFamily(
        "affinityd_gpu_orphan_processes",
        "Orphans: processes that hold the GPU, and that nothing owns any more.",
        lambda gpu: one(gpu.counts.orphans) if gpu.is_audited else (),
    ),
    MetricFamily(
        "affinityd_gpu_cpu_seconds",
        "CPU time of the GPU's processes between scans.",
        lambda gpu: one(gpu.time.total) if gpu.was_seen else (),
        kind=CounterMetricFamily,
    ),
    MetricFamily(
        "affinityd_gpu_remote_cpu_seconds",
        "Of that, the time on CPUs that are not near the GPU: a thread's goes to its last CPU.",
        lambda gpu: one(gpu.time.remote) if gpu.was_seen and gpu.is_placed else (),
        kind=CounterMetricFamily,
    ),
)

JOB_FAMILIES: tuple[MetricFamily[JobRow], ...] = (
    MetricFamily("affinityd_job_gpus", "GPUs that a job uses here.", lambda row: one(row.gpus)),
    MetricFamily(
        "affinityd_job_mismatched_gpus",
        "Of those, GPUs with a process of the job that may run on CPUs that are not near them.",
        lambda row: one(row.mismatched),
    ),
    MetricFamily(
        "affinityd_job_numa_mismatch_start_timestamp_seconds",
        "When the job's mismatch was first seen, since the epoch; only while there is one.",
        lambda row: one(row.since),
    ),
    MetricFamily(
        "affinityd_job_cpu_seconds",
        "CPU time of the job's processes that use GPUs, and of their descendants.",
        lambda row: one(row.time.total),
        kind=CounterMetricFamily,
    ),
    MetricFamily(
        "affinityd_job_remote_cpu_seconds",
        "Of that, the time on CPUs that are not near the GPU.",
        lambda row: one(row.time.remote),
        kind=CounterMetricFamily,
    ),
)

#: Of the scan as a whole.
SCAN_FAMILIES: tuple[MetricFamily[Scan], ...] = (
    MetricFamily(
        "affinityd_pin_overlap_cpus",
        "CPUs that more than one job has pinned processes to for itself.",
        lambda scan: one(sum(map(len, scan.overlap.values()))),
    ),
    MetricFamily(
        "affinityd_scan_duration_seconds",
        "How long the last scan of the processes took.",
        lambda scan: one(scan.seconds),
    ),
    MetricFamily(
        "affinityd_scan_skipped_processes",
        "Processes that the last scan did not look at, as its time was up.",
        lambda scan: one(scan.skipped),
    ),
    MetricFamily(
        "affinityd_numa_balancing",
        "The kernel's numa_balancing: 0 is off; it moves pages away under running jobs.",
        lambda scan: one(scan.numa_balancing),
    ),
)


def metrics(audit: Audit, jobs: Iterable[JobRow]) -> Iterator[Metric]:
    """Yield every metric of a scan."""
    scan, counted = audit.scan, counts(audit.scan)
    gpus = [(gpu_labels(gpu), GpuView(gpu, scan, counted[gpu.key])) for gpu in audit.topology.gpus]
    for of_gpus in GPU_FAMILIES:
        yield filled(of_gpus, GPU_LABELS, gpus)
    for of_scan in SCAN_FAMILIES:
        yield whole(of_scan, scan)
    rows = [((row.job.scheduler, one_line(row.job.id)), row) for row in jobs]
    for of_jobs in JOB_FAMILIES if rows else ():
        yield filled(of_jobs, JOB_LABELS, rows)
