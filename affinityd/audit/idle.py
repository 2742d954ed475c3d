"""For how long orphans have computed nothing: only what computes no more may be ended.

Idle is a process whose threads, and those of all that works for it, use no CPU time while the GPU
memory that it holds stays the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from affinityd.audit.model import AuditedProcess, ProcessFacts


@dataclass(frozen=True)
class Activity:
    """What changes while a process computes."""

    memory_bytes: int | None
    threads: frozenset[tuple[int, int, int]]  #: tid, start and CPU time of each, clock ticks


class IdleTimes:
    """Follows orphans from scan to scan."""

    def __init__(self) -> None:
        """Begin with none."""
        self._since: dict[tuple[int, int], tuple[Activity, float]] = {}  # by pid and start

    def seconds(self, processes: Iterable[AuditedProcess], now: float) -> dict[int, float]:
        """Return pid → seconds that each orphan has been idle, 0 at first sight.

        `now`: when the processes were read, time.monotonic().
        """
        families = defaultdict(list)
        orphans = []
        for process in processes:
            families[process.facts.holder or process.facts.pid].append(process.facts)
            if process.orphan is not None:
                orphans.append(process.facts)
        before, self._since = self._since, {}
        for facts in orphans:
            work = _work(facts, families[facts.pid])
            known, since = before.get((facts.pid, facts.start), (None, now))
            self._since[facts.pid, facts.start] = work, since if work == known else now
        return {pid: now - since for (pid, _), (_, since) in self._since.items()}


def _work(facts: ProcessFacts, family: Iterable[ProcessFacts]) -> Activity:
    return Activity(
        None if facts.holding is None else facts.holding.memory_bytes,
        frozenset((it.tid, it.start, it.cpu_ticks) for its in family for it in its.threads),
    )
