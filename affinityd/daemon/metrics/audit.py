"""Metrics of a scan: GPUs by their labels, jobs by theirs, never a pid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric

from affinityd.audit.describe import document
from affinityd.audit.document import AuditGpuDocument
from affinityd.audit.facts.job import Job
from affinityd.audit.model import CpuTime, Scan
from affinityd.daemon.metrics.families import GPU_LABELS, MetricFamily, filled, gpu_labels, whole
from affinityd.daemon.metrics.job_series import JobRow
from affinityd.text import one_line
from affinityd.topology.model import Topology


@dataclass(frozen=True)
class GpuRow:
    """The counts of a GPU."""

    gpu: AuditGpuDocument
    time: CpuTime | None  #: None: its processes were never known; else it stays
    since: float | None  #: when a mismatch began, seconds since the epoch; None: there is none


GPU_FAMILIES: tuple[MetricFamily[GpuRow], ...] = (
    MetricFamily(
        "affinityd_gpu_audited",
        "1 if the processes that use the GPU are known, else 0.",
        lambda row: row.gpu.audited,
    ),
    MetricFamily(
        "affinityd_gpu_numa_mismatch",
        (
            "1 if a process of the GPU may run on far CPUs, by cause; no sample if the GPU's "
            "processes or its NUMA node are not known."
        ),
        lambda row: (
            {cause: number > 0 for cause, number in row.gpu.mismatch.items()}
            if row.gpu.mismatch is not None and row.gpu.near is not None
            else None
        ),
        "cause",
    ),
    MetricFamily(
        "affinityd_gpu_numa_mismatch_start_timestamp_seconds",
        "When the mismatch of the GPU was first seen, since the epoch; only while there is one.",
        lambda row: row.since,
    ),
    MetricFamily(
        "affinityd_gpu_processes",
        "Processes that use the GPU, and their descendants, by placement.",
        lambda row: row.gpu.processes,
        "placement",
    ),
    MetricFamily(
        "affinityd_gpu_threads",
        "Threads of the processes that use the GPU, and of their descendants, by placement.",
        lambda row: row.gpu.threads,
        "placement",
    ),
    MetricFamily(
        "affinityd_gpu_orphan_processes",
        ("Orphans: processes that hold the GPU, and belong to no job or session any more."),
        lambda row: row.gpu.orphans,
    ),
    MetricFamily(
        "affinityd_gpu_cpu_seconds_total",
        "CPU time of the processes that use the GPU, and of their descendants.",
        lambda row: row.time.total if row.time else None,
    ),
    MetricFamily(
        "affinityd_gpu_remote_cpu_seconds_total",
        "CPU time of the GPU's processes on far CPUs; a thread's time counts for its last CPU.",
        lambda row: row.time.remote if row.time and row.gpu.near is not None else None,
    ),
    MetricFamily(
        "affinityd_measured_ratio",
        (
            "How many times faster near CPUs copied pinned memory to the GPU than those of "
            "numa_node, by affinityd measure --save; no sample if that was not measured."
        ),
        lambda row: {str(node): it for node, it in (row.gpu.measured_ratio or {}).items()},
        "numa_node",
    ),
)

JOB_LABELS = ("scheduler", "job_id", "namespace", "pod", "container")
JOB_FAMILIES: tuple[MetricFamily[JobRow], ...] = (
    MetricFamily("affinityd_job_gpus", "GPUs of the node that the job uses.", lambda row: row.gpus),
    MetricFamily(
        "affinityd_job_mismatched_gpus",
        "GPUs of the node with a process of the job that may run on far CPUs.",
        lambda row: row.mismatched,
    ),
    MetricFamily(
        "affinityd_job_gpu_seconds_total",
        "How long the job has used GPUs of the node, summed over the GPUs.",
        lambda row: row.gpu_seconds,
    ),
    MetricFamily(
        "affinityd_job_mismatched_gpu_seconds_total",
        (
            "How much of affinityd_job_gpu_seconds_total had a process of the job that may run on "
            "far CPUs, by the first cause of such processes: allocation, mask, unpinned."
        ),
        lambda row: row.mismatched_gpu_seconds,
        "cause",
    ),
    MetricFamily(
        "affinityd_job_numa_mismatch_start_timestamp_seconds",
        "When the job's mismatch was first seen, since the epoch; only while there is one.",
        lambda row: row.since,
    ),
    MetricFamily(
        "affinityd_job_cpu_seconds_total",
        "CPU time of the job's processes that use GPUs, and of their descendants.",
        lambda row: row.time.total,
    ),
    MetricFamily(
        "affinityd_job_remote_cpu_seconds_total",
        "CPU time of the job's processes on CPUs far from their GPU.",
        lambda row: row.time.remote,
    ),
)

#: Of the scan itself.
SCAN_FAMILIES: tuple[MetricFamily[Scan], ...] = (
    MetricFamily(
        "affinityd_pin_overlap_cpus",
        "CPUs that more than one job has pinned for its own use.",
        lambda scan: sum(map(len, scan.overlap.values())),
    ),
    MetricFamily(
        "affinityd_scan_duration_seconds",
        "How long the last scan of the processes took.",
        lambda scan: scan.seconds,
    ),
    MetricFamily(
        "affinityd_scan_skipped_processes",
        "Processes that the last scan did not reach within its time limit.",
        lambda scan: scan.skipped,
    ),
    MetricFamily(
        "affinityd_numa_balancing",
        "The kernel's numa_balancing: 0 is off; else the kernel unmaps pages of running jobs.",
        lambda scan: scan.numa_balancing,
    ),
)


def metrics(topology: Topology, scan: Scan, jobs: Iterable[JobRow]) -> Iterator[Metric]:
    """Yield every metric of a scan."""
    gpus = document(topology, scan, None).gpus
    yield from filled(
        GPU_FAMILIES, [(gpu_labels(gpu), _row(gpu, scan)) for gpu in gpus], GPU_LABELS
    )
    yield from whole(SCAN_FAMILIES, scan)
    if rows := [(_job_labels(row.job), row) for row in jobs]:
        yield from filled(JOB_FAMILIES, rows, JOB_LABELS)


def _job_labels(job: Job) -> tuple[str, ...]:
    return job.scheduler, one_line(job.id), *map(one_line, job.names)


def _row(gpu: AuditGpuDocument, scan: Scan) -> GpuRow:
    key = gpu.vendor, gpu.index
    time = scan.gpu_time.get(key, CpuTime())
    was_seen = gpu.audited or time.total > 0
    return GpuRow(gpu, time if was_seen else None, scan.since.get(key))
