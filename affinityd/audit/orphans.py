"""Orphans: processes that hold a GPU and belong to no job or session any more.

Source: proc_pid_stat(5).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from affinityd.audit.facts.holding import Holding
from affinityd.audit.facts.membership import is_slurms
from affinityd.audit.facts.process import ProcessFacts
from affinityd.audit.model import AuditedProcess
from affinityd.audit.owners import ProcessOwners
from affinityd.linux.processes import INIT, ZOMBIE, exists
from affinityd.topology.nearness import UNKNOWN

GONE = "X"  #: state of a process that is dead, proc_pid_stat(5)

HAS_ENDED = "it has ended, and its parent (process {parent}) has not waited for it"
HEADLESS = "its main thread has ended, and other threads still run"
OF_ENDED_JOB = "Slurm job {job} has ended: it has no slurmstepd any more"
NOT_THERE = "the driver lists it, and there is no such process"


def why(facts: ProcessFacts, owners: ProcessOwners) -> str | None:
    """Return why a process that holds a GPU belongs to no living job; None: it does."""
    if facts.holding is None:
        return None
    if facts.state == ZOMBIE:
        return HAS_ENDED.format(parent=facts.parent) if has_ended(facts) else HEADLESS
    job = facts.membership.job
    if job is not None and is_slurms(job):
        return None if owners.has_step(facts, job) else OF_ENDED_JOB.format(job=job.id)
    is_kept = job or facts.membership.container or facts.service or facts.parent != INIT
    return None if is_kept else owners.why_not(facts.uid)


def has_ended(facts: ProcessFacts) -> bool:
    """Return whether a process runs no more, and its parent has not waited for it."""
    return facts.state == ZOMBIE and len(facts.threads) <= 1


class MissingProcesses:
    """Missing processes that the driver has named twice in a row: once may be a race."""

    def __init__(self) -> None:
        self._asked: float | None = None
        self._gone: Collection[Holding] = ()  # the ones that did not exist then
        self._missing: Collection[Holding] = ()

    def found(self, unseen: Collection[Holding], asked: float) -> Collection[Holding]:
        """Return a scan's unseen processes that the driver named before as well.

        `asked`: when the driver answered; several scans may use one answer, which counts once.
        """
        if asked != self._asked:
            gone = [it for it in unseen if not exists(it.pid)]
            known = {(it.pid, it.gpu) for it in self._gone}
            self._missing = [it for it in gone if (it.pid, it.gpu) in known]
            self._asked, self._gone = asked, gone
        return self._missing


def missing_process(holding: Holding) -> AuditedProcess:
    """Return the judgment of a process that is not in /proc."""
    pid, gpu = holding.pid, holding.gpu  # neither its name, owner, start nor parent is known
    facts = ProcessFacts(pid, "?", None, 0, 0, GONE, gpu, holding, beside=holding.beside)
    return AuditedProcess(facts, UNKNOWN, placements=(), pinned_itself=(), orphan=NOT_THERE)


class IdleTimes:
    """How long orphans have been idle: only an idle orphan may be ended.

    A process is idle if it, and all processes that work for it, use no CPU time while the GPU
    memory that it holds stays the same.
    """

    def __init__(self) -> None:
        #: By pid and start: the process's GPU memory, its threads and those of processes that
        #: work for it, with the CPU time of each; and since when these are so.
        self._since: dict[tuple[int, int], tuple[object, float]] = {}

    def seconds(self, processes: Iterable[AuditedProcess], now: float) -> dict[int, float]:
        """Return pid → seconds that each orphan has been idle; 0 when first seen.

        `now`: when the processes were read, seconds since boot.
        """
        families = defaultdict[int, set[tuple[int, int, int]]](set)
        orphans = []
        for facts, orphan in ((process.facts, process.orphan) for process in processes):
            threads = ((thread.tid, thread.start, thread.cpu_ticks) for thread in facts.threads)
            families[facts.holder or facts.pid].update(threads)
            if orphan is not None:
                orphans.append(facts)
        before, self._since = self._since, {}
        for facts in orphans:
            memory = None if facts.holding is None else facts.holding.memory_bytes
            work = memory, families[facts.pid]
            known, since = before.get((facts.pid, facts.start), (None, now))
            self._since[facts.pid, facts.start] = work, since if work == known else now
        return {pid: now - since for (pid, _), (_, since) in self._since.items()}
