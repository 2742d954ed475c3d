"""The jobs with metrics of their own: a fixed number, the first ones; the others share a row.

A row's counters only grow; the shared one's too, although its jobs come and go.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from affinityd.audit.model import CpuTime, GpuKey, Job, Scan

OTHERS = Job("", "other")  #: how the shared row is called


@dataclass(frozen=True)
class JobRow:
    """The counts of a job, or of the others together."""

    job: Job
    gpus: int  #: that its processes use
    mismatched: int  #: of them: with a process of it that may run far away
    time: CpuTime
    since: float | None  #: when a mismatch began, seconds since the epoch; None: none, or OTHERS


class JobSeries:
    """Follows the jobs from scan to scan."""

    def __init__(self, most: int) -> None:
        """Take how many jobs may have a row of their own; with 0 there are no rows at all."""
        self._most = most
        self._own: list[Job] = []
        self._sharing: dict[Job, CpuTime] = {}  # a job → its time as of the last scan
        self._shared: CpuTime | None = None  # None: no job has ever had to share

    def scanned(self, scan: Scan) -> tuple[JobRow, ...]:
        """Return the rows as of a new scan."""
        if not self._most:
            return ()
        self._admit(scan)
        times = {job: scan.job_time[job] for job in self._own}
        if self._shared is not None:
            times[OTHERS] = self._shared
        gpus = self._gpus(scan)
        return tuple(
            JobRow(job, len(gpus[job]), sum(gpus[job].values()), time, scan.since.get(job))
            for job, time in times.items()
        )

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

    def _gpus(self, scan: Scan) -> defaultdict[Job, dict[GpuKey, bool]]:
        """Return the GPUs that each row's jobs use, and whether a process may run far from them."""
        gpus: defaultdict[Job, dict[GpuKey, bool]] = defaultdict(dict)
        for process in scan.processes:
            job = process.facts.membership.job
            if job is not None and not process.is_daemon:
                its = gpus[OTHERS if job in self._sharing else job]
                for gpu in process.facts.gpus:
                    its[gpu] = process.is_mismatch or its.get(gpu, False)
        return gpus
