"""Patience with processes: who is reset again and again is pinned ever later, and then no more.

What a library does to masks may be meant so: a pin is repeated, and no fight. The clock is handed
in, seconds since boot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from affinityd.audit.gather import TICKS
from affinityd.audit.model import ProcessFacts
from affinityd.cpuset import CpuSet
from affinityd.enforce.model import (
    DRIFTED,
    FITS,
    GIVEN_UP,
    LEFT,
    WAITING,
    YOUNG,
    Decision,
    PinAttempt,
)
from affinityd.enforce.verdict import drifted_masks
from affinityd.text import count

#: Seconds for which a process that is not seen is remembered: scans may be blind for a while.
REMEMBERED = 600.0

MOST_GIVEN = 16  #: masks of ours that are remembered of a process, the latest

SO_FAR = "it started {age:.0f} s ago, and is let alone for its first {grace:.0f} s"
RESET = "something in it, or its scheduler, set its masks anew after a pin, {times} in a row: "
AGAIN = "its pin was refused, {times} in a row ({refusal}): "
LATER = "the next pin is in {rest:.0f} s"
END = "it is pinned no more until its cpuset changes"
ENOUGH = END + (
    "; see what it sets (OMP_PROC_BIND, GOMP_CPU_AFFINITY, KMP_AFFINITY, numactl in its script), "
    "or leave it by a rule of the policy"
)


@dataclass(frozen=True)
class BackoffTimes:
    """How long it is, in seconds."""

    grace: float = 10.0  #: from a process's start: it may yet pin itself
    waits: tuple[float, ...] = (0, 30, 60, 120, 240)  #: from a pin to the next, by resets in a row
    forgotten: float = 3600.0  #: so long without a reset, and the next is the first in a row


@dataclass(frozen=True)
class PinRecord:
    """What is remembered of one process."""

    given: tuple[CpuSet, ...] = ()  #: the masks that we gave it, or that the kernel made of them
    asked: CpuSet | None = None  #: what was asked for it last
    pins: int = 0
    last_pin: float | None = None  #: or the last try, which was refused
    refusal: str | None = None  #: why the last try was refused, of some threads at least
    cpuset: CpuSet | None = None  #: its own at the last pin
    resets: int = 0
    last_reset: float | None = None
    in_a_row: int = 0  #: resets and refusals with no long rest between, and under one cpuset
    is_reset: bool = False  #: since the last pin


class Backoff:
    """Remembers what was done to whom."""

    def __init__(self, patience: BackoffTimes = BackoffTimes()) -> None:
        """Take how long to be patient."""
        self.resets = 0  #: of all processes
        self._patience = patience
        self._records: dict[tuple[int, int], PinRecord] = {}  # by pid and start
        self._seen: dict[tuple[int, int], float] = {}

    def record(self, facts: ProcessFacts) -> PinRecord:
        """Return what is remembered of a process."""
        return self._records.get(_key(facts), PinRecord())

    def given(self, facts: ProcessFacts) -> frozenset[CpuSet]:
        """Return the masks that we gave a process, or that the kernel made of them."""
        return frozenset(self.record(facts).given)

    def calmed(self, decisions: Iterable[Decision], boot: float) -> list[Decision]:
        """Return the decisions of a scan; who is to be pinned, but not now, is let alone.

        `boot`: when the scan began.
        """
        decisions = tuple(decisions)
        self._seen.update((_key(it.process.facts), boot) for it in decisions)
        since = boot - REMEMBERED
        self._seen = {key: seen for key, seen in self._seen.items() if seen >= since}
        self._records = {key: it for key, it in self._records.items() if key in self._seen}
        for decision in decisions:
            if decision.verdict == FITS:
                self._note_rest(decision.process.facts)
        return [self._calmed(it, boot) if it.verdict == DRIFTED else it for it in decisions]

    def pinned(self, done: PinAttempt, boot: float) -> None:
        """Note what came of a pin; `boot`: when the scan began that it came from."""
        facts, target, outcome = done.decision.process.facts, done.decision.target, done.outcome
        if target is None or not (outcome.pinned or outcome.refused):
            return
        before = self.record(facts)
        if outcome.refused:  # as a reset: it is tried again ever later
            before = replace(before, in_a_row=before.in_a_row + 1)
        new = [mask for mask in (outcome.cut, target.cpus) if mask is not None]
        given = (*(mask for mask in before.given if mask not in new), *new)
        self._records[_key(facts)] = replace(
            before,
            given=given[-MOST_GIVEN:],
            asked=target.cpus,
            pins=before.pins + (outcome.pinned > 0),
            last_pin=boot,
            refusal=outcome.error,
            cpuset=facts.cpuset,
            is_reset=outcome.refused > 0 or outcome.is_late,
        )

    def _calmed(self, decision: Decision, boot: float) -> Decision:
        facts, patience = decision.process.facts, self._patience
        age = boot - facts.start / TICKS
        if age < patience.grace:
            return _left(decision, YOUNG, SO_FAR.format(age=age, grace=patience.grace))
        last_pin = self.record(facts).last_pin
        if last_pin is None or self._is_ours(decision):
            return decision
        record = self._note_reset(facts, boot)
        if not record.in_a_row:  # time was up within the last pin
            return decision
        happened = (RESET if record.refusal is None else AGAIN).format(
            times=count(record.in_a_row, "time"), refusal=record.refusal
        )
        if record.in_a_row > len(patience.waits):
            return _left(decision, GIVEN_UP, happened + (ENOUGH if record.refusal is None else END))
        rest = last_pin + patience.waits[record.in_a_row - 1] - boot
        if rest > 0:
            return _left(decision, WAITING, happened + LATER.format(rest=rest))
        return decision

    def _is_ours(self, decision: Decision) -> bool:
        """Whether what has drifted is where we put it: its plan has changed since."""
        facts, target = decision.process.facts, decision.target
        record = self.record(facts)
        if target is None or target.cpus == record.asked:
            return False
        return drifted_masks(facts, target) <= {*record.given}

    def _note_rest(self, facts: ProcessFacts) -> None:
        """Note that a process is where it is to be: what it does next is another reset."""
        record = self._records.get(_key(facts))
        if record is not None and record.is_reset:
            self._records[_key(facts)] = replace(record, is_reset=False, refusal=None)

    def _note_reset(self, facts: ProcessFacts, boot: float) -> PinRecord:
        """Note that a process is found reset, once a pin; return what is remembered then."""
        record = self.record(facts)
        if not record.is_reset:
            rest = boot - (record.last_reset or 0)
            self.resets += 1
            record = replace(
                record,
                resets=record.resets + 1,
                in_a_row=record.in_a_row + 1 if rest < self._patience.forgotten else 1,
                last_reset=boot,
                is_reset=True,
            )
        if facts.cpuset != record.cpuset:  # rewritten, which resets masks: nobody's fight with us
            record = replace(record, in_a_row=1)
        self._records[_key(facts)] = record
        return record


def _key(facts: ProcessFacts) -> tuple[int, int]:
    return facts.pid, facts.start


def _left(decision: Decision, reason: str, why: str) -> Decision:
    return replace(decision, verdict=LEFT, reason=reason, why=why)
