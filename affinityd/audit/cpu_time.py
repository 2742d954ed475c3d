"""CPU time between scans, near GPUs and far from them, and the start of each mismatch.

A thread's time goes to the CPU that it ran on last, so a sum over many threads and scans is
right, even if a single number is not. Pure: the clocks are handed in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from affinityd.audit.facts.holding import GpuKey
from affinityd.audit.facts.job import Job
from affinityd.audit.facts.process import ProcessFacts
from affinityd.audit.model import AuditedProcess, CpuTime
from affinityd.cpuset import CpuSet

REMEMBERED = 300.0  #: seconds for which an ended job keeps its counters, to be scraped

ThreadName = tuple[int, int]  #: tid and start: one thread for good


def spent(
    facts: ProcessFacts, near: CpuSet | None, before: Mapping[ThreadName, int], since: float
) -> tuple[int, int]:
    """Return the ticks that a process's threads spent, and those of them far from its GPUs.

    `before`: the ticks of the threads at the last scan. All ticks of a new thread count if it
    started after `since`, clock ticks since boot; else they are unknown, and none counts.
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
        self._ticks = ticks  # in a second
        self._before: Mapping[ThreadName, int] = {}
        self._looked = float("inf")  # ticks since boot: of the threads before, none is known
        self._gpus: dict[GpuKey, CpuTime] = {}
        self._jobs: dict[Job, tuple[CpuTime, float]] = {}  # with when it was seen, s since boot
        self._since: dict[GpuKey | Job, float] = {}

    def book(
        self, processes: Sequence[AuditedProcess], gpus: Iterable[GpuKey], boot: float
    ) -> None:
        """Add the time spent since the last scan; `boot`: when this one began, in s since boot.

        The time of a process with several GPUs counts for its first.
        """
        self._gpus = {**dict.fromkeys(gpus, CpuTime()), **self._gpus}
        for process in processes:
            facts, job = process.facts, process.facts.part
            if process.is_daemon:
                continue
            ticks = spent(facts, process.near, self._before, self._looked)
            used = CpuTime(*(number / self._ticks for number in ticks))
            self._gpus[facts.gpu] += used
            if job is not None:
                before, _ = self._jobs.get(job, (CpuTime(), boot))
                self._jobs[job] = before + used, boot
        self._before = ticks_of(processes)
        self._looked = boot * self._ticks
        self._jobs = {job: it for job, it in self._jobs.items() if boot - it[1] < REMEMBERED}

    def note(
        self, processes: Iterable[AuditedProcess], unknown: Collection[GpuKey], now: float
    ) -> Mapping[GpuKey | Job, float]:
        """Return which GPUs and jobs have a mismatch, and since when; `now`: s since the epoch.

        A mismatch goes on while its GPU, or all processes of its job, cannot be seen.
        """
        counted = [process for process in processes if not process.is_daemon]
        seen = {process.facts.part for process in counted}
        not_seen = {*unknown, *(self._jobs.keys() - seen if unknown else ())}
        mismatched = {
            key
            for process in counted
            if process.is_mismatch
            for key in (process.facts.gpu, process.facts.part)
            if key is not None
        }
        since = {key: self._since.get(key, now) for key in mismatched}
        self._since = {key: it for key, it in self._since.items() if key in not_seen} | since
        return since

    def forget(self, gpu: GpuKey) -> None:
        """Start again with a GPU: another one has its number now."""
        self._gpus.pop(gpu, None)
        self._since.pop(gpu, None)

    @property
    def gpu_time(self) -> Mapping[GpuKey, CpuTime]:
        """The CPU time of every GPU's processes."""
        return dict(self._gpus)

    @property
    def job_time(self) -> Mapping[Job, CpuTime]:
        """The same of the jobs that were seen lately."""
        return {job: time for job, (time, _) in self._jobs.items()}
