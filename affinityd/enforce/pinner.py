"""Pins the threads of one drifted process that are not where they should run."""

from __future__ import annotations

from collections.abc import Collection

from affinityd.audit.facts.process import ProcessFacts
from affinityd.cpuset import CpuSet
from affinityd.enforce.model import DRIFTED, FITS, ON_PURPOSE, PinOutcome, TargetCpus
from affinityd.linux.pinning import (
    CHANGE,
    LEFT_ALONE,
    PINNED,
    REFUSED,
    Target,
    pin_threads,
)

MAX_PASSES = 6  #: the next scan goes on with a process that starts threads faster

RULES = {FITS: PINNED, DRIFTED: CHANGE, ON_PURPOSE: LEFT_ALONE}


def pin_process(facts: ProcessFacts, to: TargetCpus, deadline: float) -> PinOutcome:
    """Give every thread of a drifted process its target CPUs; read them back.

    `deadline`: when to stop, time.monotonic(). An ended process is left alone, and so is
    another one with its pid. No process makes it raise.
    """

    def rule(mask: CpuSet, _given: Collection[CpuSet]) -> str:
        return RULES[to.of(mask)]

    target = Target(facts.pid, facts.start, to.cpus, rule)
    result = pin_threads(lambda: [target], deadline=deadline, max_passes=MAX_PASSES)
    was_set = [thread for thread in result.threads if thread.was_set]
    refused = result.having(REFUSED)
    return PinOutcome(
        pinned=len(was_set),
        refused=len(refused),
        cut=next((thread.held for thread in was_set if thread.held < thread.asked), None),
        error=refused[0].reason if refused else None,
        is_gone=not result.threads and not result.is_late,
        is_settled=result.is_settled,
        is_late=result.is_late,
    )
