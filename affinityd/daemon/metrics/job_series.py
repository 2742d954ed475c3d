"""The jobs with metrics of their own: a fixed number, the first ones; the others share a row.

A row's counters only grow; the shared one's too, although its jobs come and go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from affinityd.audit.facts.holding import GpuKey
from affinityd.audit.facts.job import Job
from affinityd.audit.model import CpuTime, Scan
from affinityd.topology.nearness import CAUSES

OTHERS = Job("", "other")  #: how the shared row is called

#: GPUs that a row's jobs use → the first of CAUSES of their processes; None: none may run far away
CausesByGpu = dict[GpuKey, str | None]
GpuSeconds = defaultdict[str | None, float]  #: by cause, None among them


@dataclass(frozen=True)
class JobRow:
    """The counts of a job, of a container that kubelet names, or of the others together."""

    job: Job
    gpus: int  #: that its processes use
    mismatched: int  #: of them: with a process of it that may run far away
    time: CpuTime
    since: float | None  #: when a mismatch began, seconds since the epoch; None: none, or OTHERS
    #: Seconds that its GPUs were used, summed over the GPUs; and those of a mismatch, by cause
    gpu_seconds: float = 0.0
    mismatched_gpu_seconds: Mapping[str, float] = field(default_factory=dict)


class JobSeries:
    """Follows the jobs from scan to scan."""

    def __init__(self, most: int) -> None:
        """Take how many jobs may have a row of their own; with 0 there are no rows at all."""
        self._most = most
        self._own: list[Job] = []
        self._sharing: dict[Job, CpuTime] = {}  # a job → its time as of the last scan
        self._shared: CpuTime | None = None  # None: no job has ever had to share
        self._gpus: Mapping[Job, CausesByGpu] = {}  # as of the last scan
        self._held: dict[Job, GpuSeconds] = {}
        self._looked = 0.0  # seconds since boot

    def scanned(self, scan: Scan) -> tuple[JobRow, ...]:
        """Return the rows as of a new scan."""
        if not self._most:
            return ()
        self._admit(scan)
        times = {job: scan.job_time[job] for job in self._own}
        if self._shared is not None:
            times[OTHERS] = self._shared
        self._hold(scan, times)
        return tuple(self._row(job, time, scan.since.get(job)) for job, time in times.items())

    def _row(self, job: Job, time: CpuTime, since: float | None) -> JobRow:
        causes, held = self._gpus.get(job, {}), self._held[job]
        mismatched = sum(cause is not None for cause in causes.values())
        by_cause = {cause: held[cause] for cause in CAUSES}
        return JobRow(job, len(causes), mismatched, time, since, sum(held.values()), by_cause)

    def _hold(self, scan: Scan, jobs: Collection[Job]) -> None:
        """Add the seconds since the last scan: its findings hold until this one.

        So the counters of a new job begin at 0, and a job that has ended counts up to this scan.
        """
        self._held = {job: self._held.get(job, GpuSeconds(float)) for job in jobs}
        for job, causes in self._gpus.items():
            for cause in causes.values() if job in self._held else ():
                self._held[job][cause] += scan.boot - self._looked
        self._gpus, self._looked = self._causes(scan), scan.boot

    def _admit(self, scan: Scan) -> None:
        """Remove ended jobs, add new ones, and sum up the CPU time of jobs that share a row."""
        known = {*self._own, *self._sharing}
        self._own = [job for job in self._own if job in scan.job_time]
        before = {job: time for job, time in self._sharing.items() if job in scan.job_time}
        for job in (job for job in scan.job_time if job not in known):
            if len(self._own) < self._most:
                self._own.append(job)
            else:
                before[job] = CpuTime()
        self._sharing = {job: scan.job_time[job] for job in before}
        for job, then in before.items():
            now, so_far = scan.job_time[job], self._shared or CpuTime()
            self._shared = so_far + CpuTime(now.total - then.total, now.remote - then.remote)

    def _causes(self, scan: Scan) -> Mapping[Job, CausesByGpu]:
        """Return the GPUs that each row's jobs use, each with the cause of its mismatch.

        A GPU counts once, however many of their processes use it.
        """
        gpus: defaultdict[Job, CausesByGpu] = defaultdict(dict)
        for process in scan.processes:
            job = process.facts.part
            if job is not None and not process.is_daemon:
                its = gpus[OTHERS if job in self._sharing else job]
                for gpu in process.facts.gpus:
                    its[gpu] = _first(its.get(gpu), process.cause)
        return gpus


def _first(*causes: str | None) -> str | None:
    """Return the first of CAUSES; None: there is none."""
    return min((cause for cause in causes if cause is not None), key=CAUSES.index, default=None)
