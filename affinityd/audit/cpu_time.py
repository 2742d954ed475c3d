"""CPU time between scans, near GPUs and far from them, and since when there has been a mismatch.

A thread's time goes to the CPU that it ran on last, so a sum of many threads and scans is right
where a single number is not. Pure: the clocks are handed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from affinityd.audit.model import AuditedProcess, CpuTime, GpuKey, Job, ProcessFacts
from affinityd.cpuset import CpuSet

REMEMBERED = 300.0  #: seconds for which a job that is gone keeps its counters, to be scraped

ThreadName = tuple[int, int]  #: tid and start: one thread for good


def spent(
    facts: ProcessFacts, near: CpuSet | None, before: Mapping[ThreadName, int], since: float
) -> tuple[int, int]:
    """Return the ticks that a process's threads spent, and those of them far from its GPUs.

    `before`: the ticks of the threads that were seen then. Of any other all counts if it started
    after `since`, clock ticks since boot; else it was not looked at, and that is not known.
    """
    total = remote = 0
    for thread in facts.threads:
        known = before.get((thread.tid, thread.start), 0 if thread.start >= since else None)
        used = 0 if known is None else max(0, thread.cpu_ticks - known)
        total += used
        if near is not None and thread.last_cpu not in near:
            remote += used
    return total, remote


def ticks_of(processes: Iterable[AuditedProcess]) -> dict[ThreadName, int]:
    """Return the ticks of every thread so far."""
    return {
        (thread.tid, thread.start): thread.cpu_ticks
        for process in processes
        for thread in process.facts.threads
    }


class CpuTimeCounters:
    """The counters, from the first scan on. They never go back."""

    def __init__(self, ticks: int) -> None:
        """Take how many clock ticks a second has."""
        self._ticks = ticks
        self._before: Mapping[ThreadName, int] = {}
        self._looked = float("inf")  # ticks since boot: of the threads before, none is known
        self._gpus: dict[GpuKey, CpuTime] = {}
        self._jobs: dict[Job, CpuTime] = {}
        self._seen: dict[Job, float] = {}  # when a job was seen last, seconds since boot
        self._since: dict[GpuKey | Job, float] = {}
        self._mismatched: set[GpuKey | Job] = set()

    def book(
        self, processes: Iterable[AuditedProcess], gpus: Iterable[GpuKey], boot: float
    ) -> None:
        """Add what was spent since the scan before; `boot`: when this one began, since boot, s.

        What a process spent for several GPUs counts for its first.
        """
        processes = tuple(processes)
        for gpu in gpus:
            self._gpus.setdefault(gpu, CpuTime())
        for process in processes:
            facts, job = process.facts, process.facts.membership.job
            if process.is_daemon:
                continue
            total, remote = spent(facts, process.near, self._before, self._looked)
            used = CpuTime(total / self._ticks, remote / self._ticks)
            self._gpus[facts.gpu] += used
            if job is not None:
                self._jobs[job] = self._jobs.get(job, CpuTime()) + used
                self._seen[job] = boot
        self._before = ticks_of(processes)
        self._looked = boot * self._ticks
        self._seen = {job: seen for job, seen in self._seen.items() if boot - seen < REMEMBERED}
        self._jobs = {job: self._jobs[job] for job in self._seen}

    def note(
        self, processes: Iterable[AuditedProcess], unknown: Iterable[GpuKey], now: float
    ) -> None:
        """Note which GPUs and jobs have a mismatch; `now` is seconds since the epoch.

        The mismatch of what cannot be seen for a while goes on: of a GPU, and of a job that is
        remembered and has no process that is seen.
        """
        unsure = set(unknown)
        counted = [process for process in processes if not process.is_daemon]
        seen = {process.facts.membership.job for process in counted}
        not_seen = self._jobs.keys() - seen if unsure else set()
        self._mismatched = {
            key
            for process in counted
            if process.is_mismatch
            for key in (process.facts.gpu, process.facts.membership.job)
            if key is not None
        }
        self._since = {
            **{key: it for key, it in self._since.items() if key in unsure or key in not_seen},
            **{key: self._since.get(key, now) for key in self._mismatched},
        }

    def forget(self, gpu: GpuKey) -> None:
        """Begin anew with a GPU: another one has its number now."""
        self._gpus.pop(gpu, None)
        self._since.pop(gpu, None)

    @property
    def gpu_time(self) -> Mapping[GpuKey, CpuTime]:
        """The CPU time of every GPU's processes."""
        return dict(self._gpus)

    @property
    def job_time(self) -> Mapping[Job, CpuTime]:
        """The same of the jobs that were seen lately."""
        return dict(self._jobs)

    @property
    def since(self) -> Mapping[GpuKey | Job, float]:
        """GPUs and jobs with a mismatch → since when, seconds since the epoch."""
        return {key: self._since[key] for key in self._mismatched}
