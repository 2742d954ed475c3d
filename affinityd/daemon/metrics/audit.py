"""The metrics of a scan; their labels name GPUs and jobs, but never a pid.

A fixed number of jobs, the first to come, have metrics of their own; all others share one row. The
counters of a row only grow, also in the shared row, although its jobs come and go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from affinityd.audit.document import AuditGpuDocument
from affinityd.audit.findings import LOST, RESERVED
from affinityd.audit.model import CpuTime, Job, Scan
from affinityd.daemon.metrics import GPU_LABELS, add, gpu_labels, with_samples
from affinityd.text import one_line
from affinityd.topology.model import GpuKey, Keys, moved
from affinityd.topology.nearness import CAUSES, LOCAL, REMOTE

OTHERS = Job("", "other")  #: name of the shared row


ENDED_JOBS_KEPT = 300.0  #: seconds that an ended job keeps its counters for scrapes


@dataclass
class JobRow:
    """The counts of a job, of a container that kubelet names, or of all jobs that share a row."""

    job: Job
    time: CpuTime = field(default_factory=CpuTime)  #: up to the scan before the last
    used: CpuTime = field(default_factory=CpuTime)  #: since then
    since: float | None = None  #: start of a mismatch, since the epoch; None: no mismatch
    #: GPUs that its processes use → the first of these processes' CAUSES; None: no process may
    #: run far away
    causes: dict[GpuKey, str | None] = field(default_factory=dict)
    #: Seconds of use of its GPUs, summed over the GPUs, by cause; None: without a mismatch
    gpu_seconds: defaultdict[str | None, float] = field(default_factory=lambda: defaultdict(float))


class JobSeries:
    """Keeps the rows of jobs from scan to scan."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows: dict[Job, JobRow] = {}  # rows of living jobs, and OTHERS if jobs share it
        self._seen: dict[Job, float] = {}  # living job → when last seen, since boot
        self._looked = 0.0  # seconds since boot

    def renumber(self, keys: Keys) -> None:
        """Move the findings of GPUs whose index has changed to the new index."""
        for row in self._rows.values():
            row.causes = moved(row.causes, keys)

    def scanned(self, scan: Scan) -> list[JobRow]:
        """Return the rows after a new scan.

        The findings of the last scan hold until this one, and CPU time counts at the next one. So
        the counters of a new job begin at 0, and a job that has ended counts up to this scan. The
        findings on a GPU stay while its processes are not known.
        """
        if not self._most:
            return []
        for job, seen in list(self._seen.items()):
            # Jobs of the last scan count up to this one, however long ago it was.
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
                for gpu in process.facts.gpus:  # a GPU counts once for all processes
                    row.causes[gpu] = _first(row.causes.get(gpu), process.cause)
        for job, row in self._rows.items():
            is_far = any(row.causes.values()) and job != OTHERS
            row.since = (row.since or scan.time) if is_far else None
        return list(self._rows.values())

    def _row(self, job: Job) -> JobRow:
        """Return a job's row: its own, if one was free when the job came.

        Until kubelet answers, all containers of a pod share a row. The first container that kubelet
        names takes over that row with its counters.
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


def metrics(
    scan: Scan, gpus: Sequence[AuditGpuDocument], jobs: Iterable[JobRow]
) -> Iterator[Metric]:
    """Yield every metric of a scan; `gpus`: of its document of counts."""
    families = [*_gpu_metrics(scan, gpus), *_scan_metrics(scan), *_job_metrics(gpus, jobs)]
    return with_samples(families)


def _gpu_metrics(scan: Scan, gpus: Sequence[AuditGpuDocument]) -> Iterator[Metric]:
    by_cause = (*GPU_LABELS, "cause")
    by_placement = (*GPU_LABELS, "placement")
    audited = GaugeMetricFamily(
        "affinityd_gpu_audited",
        "1 if the processes that use the GPU are known, else 0.",
        labels=GPU_LABELS,
    )
    mismatch = GaugeMetricFamily(
        "affinityd_gpu_numa_mismatch",
        "1 if a process of the GPU may run on far CPUs, by cause; no sample if the GPU's "
        "processes or its NUMA node are not known.",
        labels=by_cause,
    )
    processes = GaugeMetricFamily(
        "affinityd_gpu_processes",
        "Processes that use the GPU, and their descendants, by placement.",
        labels=by_placement,
    )
    orphans = GaugeMetricFamily(
        "affinityd_gpu_orphan_processes",
        "Orphans: processes that hold the GPU, and belong to no job any more.",
        labels=GPU_LABELS,
    )
    reserved = GaugeMetricFamily(
        "affinityd_gpu_reserved",
        "1 if a job is known to have the GPU, and no process uses it, else 0.",
        labels=GPU_LABELS,
    )
    cpu_seconds = CounterMetricFamily(
        "affinityd_gpu_cpu_seconds_total",
        "CPU time of the processes that use the GPU, and of their descendants.",
        labels=GPU_LABELS,
    )
    remote_cpu_seconds = CounterMetricFamily(
        "affinityd_gpu_remote_cpu_seconds_total",
        "CPU time of the GPU's processes on far CPUs; a thread's time counts for its last CPU.",
        labels=GPU_LABELS,
    )
    wait_seconds = CounterMetricFamily(
        "affinityd_gpu_wait_seconds_total",
        "How long threads of the processes that use the GPU, and of their descendants, were "
        "runnable and did not run: the kernel's run delay. Short-lived threads are not counted.",
        labels=GPU_LABELS,
    )
    waiting = GaugeMetricFamily(
        "affinityd_gpu_waiting_processes",
        "Processes of the GPU whose threads wait long for CPUs, by the cause of that.",
        labels=by_cause,
    )
    throttled_seconds = CounterMetricFamily(
        "affinityd_gpu_throttled_seconds_total",
        "How long cgroups of the GPU's processes were throttled by their CPU limit, over CPUs.",
        labels=GPU_LABELS,
    )
    host_memory = GaugeMetricFamily(
        "affinityd_gpu_host_memory_bytes",
        "Resident host memory of the processes that use the GPU, by locality (local, remote, "
        "unknown), by a sample of pages; a process counts for one GPU, shared pages in full.",
        labels=(*GPU_LABELS, "locality", "placement"),
    )
    far_memory = GaugeMetricFamily(
        "affinityd_gpu_far_memory_processes",
        "Processes of the GPU with much host memory on far nodes, by the cause of that.",
        labels=by_cause,
    )
    lost = GaugeMetricFamily(
        "affinityd_gpu_lost",
        "1 if the GPU is lost or hangs, or is no longer there, else 0.",
        labels=GPU_LABELS,
    )
    since = GaugeMetricFamily(
        "affinityd_gpu_numa_mismatch_start_timestamp_seconds",
        "When the mismatch of the GPU was first seen, since the epoch; only while there is one.",
        labels=GPU_LABELS,
    )
    for gpu in gpus:
        labels = gpu_labels(gpu)
        add(audited, labels, gpu.audited)
        if gpu.mismatch is not None and gpu.near is not None:
            add(mismatch, labels, {cause: number > 0 for cause, number in gpu.mismatch.items()})
        add(processes, labels, gpu.processes)
        add(orphans, labels, gpu.orphans)
        if gpu.audited:
            add(reserved, labels, gpu.state == RESERVED)
        add(cpu_seconds, labels, gpu.cpu_seconds)
        add(remote_cpu_seconds, labels, gpu.remote_cpu_seconds)
        add(wait_seconds, labels, gpu.wait_seconds)
        add(waiting, labels, gpu.waiting)
        add(throttled_seconds, labels, gpu.throttled_seconds)
        for locality, size in (gpu.host_memory_bytes or {}).items():
            # Dashboards of users may use the label `placement` of 0.2, until 0.4 removes it.
            placement = {LOCAL: "near", REMOTE: "far"}.get(locality, locality)
            host_memory.add_metric([*labels, locality, placement], size)
        add(far_memory, labels, gpu.far_memory)
        add(lost, labels, gpu.state == LOST)
        add(since, labels, scan.since.get((gpu.vendor, gpu.index)))
    for gone in scan.gone:
        add(lost, gpu_labels(gone), 1)
    yield from (audited, mismatch, processes, orphans, reserved, cpu_seconds, remote_cpu_seconds)
    yield from (wait_seconds, waiting, throttled_seconds, host_memory, far_memory, lost, since)


def _scan_metrics(scan: Scan) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "affinityd_pin_overlap_cpus",
        "CPUs that more than one job has pinned for its own use.",
        sum(map(len, scan.overlap.values())),
    )
    yield GaugeMetricFamily(
        "affinityd_scan_duration_seconds",
        "How long the last scan of the processes took.",
        scan.seconds,
    )
    yield GaugeMetricFamily(
        "affinityd_scan_skipped_processes",
        "Processes that the last scan did not reach within its time limit.",
        scan.skipped,
    )
    yield GaugeMetricFamily(
        "affinityd_numa_balancing",
        "The kernel's numa_balancing: if odd, the kernel unmaps pages of running jobs.",
        scan.numa_balancing,
    )


def _job_metrics(gpus: Sequence[AuditGpuDocument], jobs: Iterable[JobRow]) -> Iterator[Metric]:
    labels = ("scheduler", "job_id", "namespace", "pod", "container")
    used = GaugeMetricFamily(
        "affinityd_job_gpus", "GPUs of the node that the job uses.", labels=labels
    )
    mismatched = GaugeMetricFamily(
        "affinityd_job_mismatched_gpus",
        "GPUs of the node with a process of the job that may run on far CPUs.",
        labels=labels,
    )
    gpu_seconds = CounterMetricFamily(
        "affinityd_job_gpu_seconds_total",
        "How long the job has used GPUs of the node, summed over the GPUs.",
        labels=labels,
    )
    mismatched_seconds = CounterMetricFamily(
        "affinityd_job_mismatched_gpu_seconds_total",
        "How much of affinityd_job_gpu_seconds_total had a process of the job that may run on "
        "far CPUs, by the first cause of such processes: allocation, mask, unpinned.",
        labels=(*labels, "cause"),
    )
    since = GaugeMetricFamily(
        "affinityd_job_numa_mismatch_start_timestamp_seconds",
        "When the job's mismatch was first seen, since the epoch; only while there is one.",
        labels=labels,
    )
    cpu_seconds = CounterMetricFamily(
        "affinityd_job_cpu_seconds_total",
        "CPU time of the job's processes that use GPUs, and of their descendants.",
        labels=labels,
    )
    remote_cpu_seconds = CounterMetricFamily(
        "affinityd_job_remote_cpu_seconds_total",
        "CPU time of the job's processes on CPUs far from their GPU.",
        labels=labels,
    )
    of_gpu = GaugeMetricFamily(
        "affinityd_job_gpu",
        "1 for each GPU that a job uses, so that an alert or panel about a GPU can name its job.",
        labels=(*GPU_LABELS, *labels),
    )
    for row in jobs:
        job = row.job
        values = (job.scheduler, job.id, job.namespace, job.pod, job.container)
        its_labels = tuple(map(one_line, values))
        add(used, its_labels, len(row.causes))
        add(mismatched, its_labels, len(row.causes) - list(row.causes.values()).count(None))
        add(gpu_seconds, its_labels, sum(row.gpu_seconds.values()))
        add(mismatched_seconds, its_labels, {cause: row.gpu_seconds[cause] for cause in CAUSES})
        add(since, its_labels, row.since if row.causes else None)
        add(cpu_seconds, its_labels, row.time.total)
        add(remote_cpu_seconds, its_labels, row.time.remote)
        for gpu in gpus:
            if (gpu.vendor, gpu.index) in row.causes:
                of_gpu.add_metric([*gpu_labels(gpu), *its_labels], 1)
    yield from (used, mismatched, gpu_seconds, mismatched_seconds)
    yield from (since, cpu_seconds, remote_cpu_seconds, of_gpu)
