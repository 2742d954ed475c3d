"""The jobs that have metrics of their own: so many, those seen first; the others share a row.

A row's counters only ever grow, the shared one's too, although jobs come and go in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from affinityd.audit.model import CpuTime, GpuKey, Job, Scan

OTHERS = Job("", "other")  #: how the shared row is called


@dataclass(frozen=True)
class JobRow:
    """What is counted of a job, or of the others together."""

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
        self._own: tuple[Job, ...] = ()
        self._sharing: dict[Job, CpuTime] = {}  # a job → its time as of the last scan
        self._shared: CpuTime | None = None  # None: no job has ever had to share

    def scanned(self, scan: Scan) -> tuple[JobRow, ...]:
        """Return the rows as of a new scan."""
        if not self._most:
            return ()
        self._admit(scan)
        gpus, mismatched = _gpus(scan)
        rows = [
            JobRow(job, len(gpus[job]), len(mismatched[job]), time, scan.since.get(job))
            for job in self._own
            for time in (scan.job_time[job],)
        ]
        if self._shared is not None:
            uses, suffers = (_together(of, self._sharing) for of in (gpus, mismatched))
            rows.append(JobRow(OTHERS, uses, suffers, self._shared, None))
        return tuple(rows)

    def _admit(self, scan: Scan) -> None:
        """Forget jobs that are gone, take in new ones, and add up what the sharing ones used."""
        known = {*self._own, *self._sharing}
        own = [job for job in self._own if job in scan.job_time]
        sharing = {job: time for job, time in self._sharing.items() if job in scan.job_time}
        for job in (job for job in scan.job_time if job not in known):
            if len(own) < self._most:
                own.append(job)
            else:
                sharing[job] = CpuTime()
        self._own = tuple(own)
        self._sharing = {job: scan.job_time[job] for job in sharing}
        if sharing:
            grown = [(scan.job_time[job], then) for job, then in sharing.items()]
            so_far = self._shared or CpuTime()
            self._shared = CpuTime(
                so_far.total + sum(now.total - then.total for now, then in grown),
                so_far.remote + sum(now.remote - then.remote for now, then in grown),
            )


def _gpus(
    scan: Scan,
) -> tuple[defaultdict[Job, set[GpuKey]], defaultdict[Job, set[GpuKey]]]:
    """Return the GPUs that each job uses, and those of them that a process may run far from."""
    gpus: defaultdict[Job, set[GpuKey]] = defaultdict(set)
    mismatched: defaultdict[Job, set[GpuKey]] = defaultdict(set)
    for process in scan.processes:
        job = process.facts.membership.job
        if job is not None and not process.is_daemon:
            gpus[job].update(process.facts.gpus)
            if process.is_mismatch:
                mismatched[job].update(process.facts.gpus)
    return gpus, mismatched


def _together(of: defaultdict[Job, set[GpuKey]], jobs: Iterable[Job]) -> int:
    return len(set[GpuKey]().union(*(of[job] for job in jobs)))
