"""Processes that use GPUs by the process that started them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from affinityd.audit.model import Audited, ProcessFacts


def divided(processes: Iterable[Audited]) -> frozenset[int]:
    """Return the pids of the processes below which another one holds other GPUs.

    What is right for such a process is not for all below it.
    """
    by_pid = {process.facts.pid: process.facts for process in processes}
    return frozenset(
        above.pid
        for facts in by_pid.values()
        if facts.holding is not None
        for above in _above(facts, by_pid)
        if {*above.gpus} != {*facts.gpus}
    )


def _above(facts: ProcessFacts, by_pid: Mapping[int, ProcessFacts]) -> Iterator[ProcessFacts]:
    """Yield a process's ancestors; they were read one after the other, and may seem a circle."""
    met = {facts.pid}
    parent = by_pid.get(facts.parent)
    while parent is not None and parent.pid not in met:
        met.add(parent.pid)
        yield parent
        parent = by_pid.get(parent.parent)
