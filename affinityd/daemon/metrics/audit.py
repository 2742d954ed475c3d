"""Metrics of a scan: GPUs by their labels, jobs by theirs, never a pid.

A fixed number of jobs, the first ones, have metrics of their own; the others share a row. A row's
counters only grow; the shared one's too, although its jobs come and go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from prometheus_client.core import Metric

from affinityd.audit.document import AuditGpuDocument
from affinityd.audit.model import CpuTime, Job, Scan
from affinityd.audit.verdict import LOST, RESERVED
from affinityd.daemon.metrics import (
    GPU_LABELS,
    MetricFamily,
    filled,
    gpu_labels,
    unchanged,
    whole,
)
from affinityd.text import one_line
from affinityd.topology.model import GpuKey, Keys, moved
from affinityd.topology.nearness import CAUSES

OTHERS = Job("", "other")  #: how the shared row is called


ENDED_JOBS_KEPT = 300.0  #: seconds for which an ended job keeps its counters, to be scraped


@dataclass
class JobRow:
    """The counts of a job, of a container that kubelet names, or of the others together."""

    job: Job
    time: CpuTime = field(default_factory=CpuTime)  #: up to the scan before
    used: CpuTime = field(default_factory=CpuTime)  #: since then
    since: float | None = None  #: when a mismatch began, since the epoch; None: none, or OTHERS
    #: GPUs that its processes use → the first of CAUSES of these; None: none may run far away
    causes: dict[GpuKey, str | None] = field(default_factory=dict)
    #: Seconds that its GPUs were used, summed over the GPUs, by cause, None among them
    gpu_seconds: defaultdict[str | None, float] = field(default_factory=lambda: defaultdict(float))


class JobSeries:
    """Follows the jobs from scan to scan."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows: dict[Job, JobRow] = {}  # of the living jobs, and OTHERS if a job ever shared
        self._seen: dict[Job, float] = {}  # each living job → when last, seconds since boot
        self._looked = 0.0  # seconds since boot

    def renumber(self, keys: Keys) -> None:
        """Take over what was found of GPUs that have another index now."""
        for row in self._rows.values():
            row.causes = moved(row.causes, keys)

    def scanned(self, scan: Scan) -> list[JobRow]:
        """Return the rows as of a new scan.

        The findings of the last scan hold until this one, and CPU time counts at the next one. So
        the counters of a new job begin at 0, and a job that has ended counts up to this scan. What
        was found of a GPU goes on while its processes are not known.
        """
        if not self._most:
            return []
        for job, seen in list(self._seen.items()):
            # Those of the last scan count up to this one, however long ago it was.
            if scan.boot - seen >= ENDED_JOBS_KEPT and seen != self._looked:
                del self._seen[job]
                self._rows.pop(job, None)
        for row in self._rows.values():
            for cause in row.causes.values():
                row.gpu_seconds[cause] += scan.boot - self._looked
            is_over = row.job == OTHERS and self._seen.keys() <= self._rows.keys()
            unknown = () if is_over else scan.unknown
            row.causes = {gpu: cause for gpu, cause in row.causes.items() if gpu in unknown}
            row.time += row.used
            row.used = CpuTime()
        self._looked = scan.boot
        for process in scan.processes:
            part = process.facts.part
            if part is not None and not process.is_daemon:
                row = self._row(part)
                self._seen[part] = scan.boot
                row.used += scan.used.get(process.facts.pid, CpuTime())
                for gpu in process.facts.gpus:  # each counts once, however many processes use it
                    row.causes[gpu] = _first(row.causes.get(gpu), process.cause)
        for job, row in self._rows.items():
            is_far = any(row.causes.values()) and job != OTHERS
            row.since = (row.since or scan.time) if is_far else None
        return list(self._rows.values())

    def _row(self, job: Job) -> JobRow:
        """Return a job's row: its own, if there was room when it came.

        The first container that kubelet names takes over the row of its pod without names, and its
        counters: kubelet may have been silent before.
        """
        pod = Job(job.scheduler, job.id)
        if pod in self._rows and job not in self._rows:
            del self._seen[pod]
            self._rows[job] = replace(self._rows.pop(pod), job=job)
        if job in self._rows:
            return self._rows[job]
        own = len(self._rows) - (OTHERS in self._rows)
        if job in self._seen or own >= self._most:
            job = OTHERS
        return self._rows.setdefault(job, JobRow(job))


def _first(*causes: str | None) -> str | None:
    return min((cause for cause in causes if cause is not None), key=CAUSES.index, default=None)


def _mismatch_by_cause(gpu: AuditGpuDocument) -> dict[str, float] | None:
    if gpu.mismatch is None or gpu.near is None:
        return None
    return {cause: number > 0 for cause, number in gpu.mismatch.items()}


def _is_reserved(gpu: AuditGpuDocument) -> bool | None:
    return gpu.state == RESERVED if gpu.audited else None


AUDIT_FAMILIES: tuple[MetricFamily[AuditGpuDocument], ...] = (
    MetricFamily(
        "affinityd_gpu_audited",
        "1 if the processes that use the GPU are known, else 0.",
        attrgetter("audited"),
    ),
    MetricFamily(
        "affinityd_gpu_numa_mismatch",
        "1 if a process of the GPU may run on far CPUs, by cause; no sample if the GPU's "
        "processes or its NUMA node are not known.",
        _mismatch_by_cause,
        "cause",
    ),
    MetricFamily(
        "affinityd_gpu_processes",
        "Processes that use the GPU, and their descendants, by placement.",
        attrgetter("processes"),
        "placement",
    ),
    MetricFamily(
        "affinityd_gpu_orphan_processes",
        "Orphans: processes that hold the GPU, and belong to no job any more.",
        attrgetter("orphans"),
    ),
    MetricFamily(
        "affinityd_gpu_reserved",
        "1 if a job is known to have the GPU, and no process uses it, else 0.",
        _is_reserved,
    ),
    MetricFamily(
        "affinityd_gpu_cpu_seconds_total",
        "CPU time of the processes that use the GPU, and of their descendants.",
        attrgetter("cpu_seconds"),
    ),
    MetricFamily(
        "affinityd_gpu_remote_cpu_seconds_total",
        "CPU time of the GPU's processes on far CPUs; a thread's time counts for its last CPU.",
        attrgetter("remote_cpu_seconds"),
    ),
    MetricFamily(
        "affinityd_gpu_wait_seconds_total",
        "How long threads of the processes that use the GPU, and of their descendants, could run "
        "and did not: the kernel's run delay. Short-lived threads are not counted.",
        attrgetter("wait_seconds"),
    ),
    MetricFamily(
        "affinityd_gpu_waiting_processes",
        "Processes of the GPU whose threads wait long for CPUs, by the cause of that.",
        attrgetter("waiting"),
        "cause",
    ),
    MetricFamily(
        "affinityd_gpu_throttled_seconds_total",
        "How long cgroups of the GPU's processes were throttled by their CPU limit, over CPUs.",
        attrgetter("throttled_seconds"),
    ),
    MetricFamily(
        "affinityd_gpu_host_memory_bytes",
        (
            "Resident host memory of the processes that use the GPU, by placement (near, far, "
            "unknown), by a sample of its pages; each counts for one GPU, shared pages in full."
        ),
        attrgetter("host_memory_bytes"),
        "placement",
    ),
    MetricFamily(
        "affinityd_gpu_far_memory_processes",
        "Processes of the GPU with much host memory on far nodes, by the cause of that.",
        attrgetter("far_memory"),
        "cause",
    ),
)

#: Of a GPU, also one that is not there any more.
LOST_FAMILIES: tuple[MetricFamily[bool], ...] = (
    MetricFamily(
        "affinityd_gpu_lost",
        "1 if the GPU is lost or hangs, or was there and is not any more, else 0.",
        unchanged,
    ),
)

#: Since when a GPU has a mismatch, seconds since the epoch; None: it has none.
SINCE_FAMILIES: tuple[MetricFamily[float | None], ...] = (
    MetricFamily(
        "affinityd_gpu_numa_mismatch_start_timestamp_seconds",
        "When the mismatch of the GPU was first seen, since the epoch; only while there is one.",
        unchanged,
    ),
)


def _mismatched_gpus(row: JobRow) -> int:
    return sum(cause is not None for cause in row.causes.values())


def _gpu_seconds_by_cause(row: JobRow) -> dict[str, float]:
    return {cause: row.gpu_seconds[cause] for cause in CAUSES}


JOB_LABELS = ("scheduler", "job_id", "namespace", "pod", "container")
JOB_FAMILIES: tuple[MetricFamily[JobRow], ...] = (
    MetricFamily(
        "affinityd_job_gpus", "GPUs of the node that the job uses.", lambda row: len(row.causes)
    ),
    MetricFamily(
        "affinityd_job_mismatched_gpus",
        "GPUs of the node with a process of the job that may run on far CPUs.",
        _mismatched_gpus,
    ),
    MetricFamily(
        "affinityd_job_gpu_seconds_total",
        "How long the job has used GPUs of the node, summed over the GPUs.",
        lambda row: sum(row.gpu_seconds.values()),
    ),
    MetricFamily(
        "affinityd_job_mismatched_gpu_seconds_total",
        "How much of affinityd_job_gpu_seconds_total had a process of the job that may run on "
        "far CPUs, by the first cause of such processes: allocation, mask, unpinned.",
        _gpu_seconds_by_cause,
        "cause",
    ),
    MetricFamily(
        "affinityd_job_numa_mismatch_start_timestamp_seconds",
        "When the job's mismatch was first seen, since the epoch; only while there is one.",
        lambda row: row.since if row.causes else None,
    ),
    MetricFamily(
        "affinityd_job_cpu_seconds_total",
        "CPU time of the job's processes that use GPUs, and of their descendants.",
        attrgetter("time.total"),
    ),
    MetricFamily(
        "affinityd_job_remote_cpu_seconds_total",
        "CPU time of the job's processes on CPUs far from their GPU.",
        attrgetter("time.remote"),
    ),
)

#: Of a GPU and a job that uses it.
USED_FAMILIES: tuple[MetricFamily[bool], ...] = (
    MetricFamily(
        "affinityd_job_gpu",
        "1 for each GPU that a job uses: by this an alert or a panel on a GPU names its job.",
        unchanged,
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
        attrgetter("seconds"),
    ),
    MetricFamily(
        "affinityd_scan_skipped_processes",
        "Processes that the last scan did not reach within its time limit.",
        attrgetter("skipped"),
    ),
    MetricFamily(
        "affinityd_numa_balancing",
        "The kernel's numa_balancing: if odd, the kernel unmaps pages of running jobs.",
        attrgetter("numa_balancing"),
    ),
)


def metrics(
    scan: Scan, gpus: Sequence[AuditGpuDocument], jobs: Iterable[JobRow]
) -> Iterator[Metric]:
    """Yield every metric of a scan; `gpus`: of its document of counts."""
    yield from filled(AUDIT_FAMILIES, [(gpu_labels(gpu), gpu) for gpu in gpus], GPU_LABELS)
    lost = [(gpu_labels(gpu), gpu.state == LOST) for gpu in gpus]
    lost += [(gpu_labels(gpu), True) for gpu in scan.gone]
    yield from filled(LOST_FAMILIES, lost, GPU_LABELS)
    since = [(gpu_labels(gpu), scan.since.get((gpu.vendor, gpu.index))) for gpu in gpus]
    yield from filled(SINCE_FAMILIES, since, GPU_LABELS)
    yield from whole(SCAN_FAMILIES, scan)
    rows = []
    used = []
    for row in jobs:
        labels = _job_labels(row.job)
        rows.append((labels, row))
        of_job = [gpu for gpu in gpus if (gpu.vendor, gpu.index) in row.causes]
        used += [((*gpu_labels(gpu), *labels), True) for gpu in of_job]
    if rows:
        yield from filled(JOB_FAMILIES, rows, JOB_LABELS)
        yield from filled(USED_FAMILIES, used, (*GPU_LABELS, *JOB_LABELS))


def _job_labels(job: Job) -> tuple[str, ...]:
    return tuple(map(one_line, (job.scheduler, job.id, job.namespace, job.pod, job.container)))
