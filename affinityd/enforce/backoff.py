"""Exponential backoff per process: after resets wait ever longer before pinning again, then stop.

What a library does to masks may be meant so: a pin is repeated, and no fight. The clock is handed
in, seconds since boot.
"""

from __future__ import annotations

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
from affinityd.recent import Recent
from affinityd.text import count

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
    """Remembers what was done to each process, and when it is to be pinned next."""

    def __init__(self, times: BackoffTimes = BackoffTimes()) -> None:
        """Take how long to wait."""
        self.resets = 0  #: of all processes
        self._times = times
        self._boot = 0.0
        self._records: Recent[tuple[int, int], PinRecord] = Recent()  # by pid and start

    def begin(self, boot: float) -> None:
        """Begin another scan; `boot`: when, seconds since boot."""
        self._boot = boot
        self._records.begin(boot)

    def record(self, facts: ProcessFacts) -> PinRecord:
        """Return what is remembered of a process."""
        return self._records.get(_key(facts)) or PinRecord()

    def given(self, facts: ProcessFacts) -> frozenset[CpuSet]:
        """Return the masks that we gave a process, or that the kernel made of them."""
        return frozenset(self.record(facts).given)

    def after_waiting(self, decision: Decision) -> Decision:
        """Return the decision; what is to be pinned, but not now, is let alone."""
        facts, record = decision.process.facts, self.record(decision.process.facts)
        if decision.verdict == FITS and record.is_reset:  # what it does next is another reset
            self._records[_key(facts)] = replace(record, is_reset=False, refusal=None)
        if decision.verdict != DRIFTED:
            return decision
        age = self._boot - facts.start / TICKS
        if age < self._times.grace:
            return _left(decision, YOUNG, SO_FAR.format(age=age, grace=self._times.grace))
        if record.last_pin is None or self._is_ours(decision):
            return decision
        self._records[_key(facts)] = record = self._reset(facts, record)
        return self._waiting(decision, record, record.last_pin or 0.0)

    def note(self, attempt: PinAttempt) -> None:
        """Note what came of a pin."""
        decision, outcome = attempt.decision, attempt.outcome
        facts, target = decision.process.facts, decision.target
        if target is None or not (outcome.pinned or outcome.refused):
            return
        before = self.record(facts)
        new = [mask for mask in (outcome.cut, target.cpus) if mask is not None]
        given = (*(mask for mask in before.given if mask not in new), *new)
        self._records[_key(facts)] = replace(
            before,
            given=given[-MOST_GIVEN:],
            asked=target.cpus,
            pins=before.pins + (outcome.pinned > 0),
            last_pin=self._boot,
            refusal=outcome.error,
            cpuset=facts.cpuset,
            in_a_row=before.in_a_row + (outcome.refused > 0),  # as a reset
            is_reset=outcome.refused > 0 or outcome.is_late,
        )

    def _waiting(self, decision: Decision, record: PinRecord, last_pin: float) -> Decision:
        """Return the decision about a process that was reset, or refused, so often in a row."""
        times, waits = record.in_a_row, self._times.waits
        if not times:  # time was up within the last pin
            return decision
        happened = (RESET if record.refusal is None else AGAIN).format(
            times=count(times, "time"), refusal=record.refusal
        )
        if times > len(waits):
            return _left(decision, GIVEN_UP, happened + (ENOUGH if record.refusal is None else END))
        rest = last_pin + waits[times - 1] - self._boot
        if rest > 0:
            return _left(decision, WAITING, happened + LATER.format(rest=rest))
        return decision

    def _is_ours(self, decision: Decision) -> bool:
        """Whether what has drifted is where we put it: its plan has changed since."""
        facts, target = decision.process.facts, decision.target
        record = self.record(facts)
        if target is None or target.cpus == record.asked:
            return False
        return target.drifted_masks(facts) <= {*record.given}

    def _reset(self, facts: ProcessFacts, record: PinRecord) -> PinRecord:
        """Return what is remembered once a process was found reset, once a pin."""
        if not record.is_reset:
            is_first = self._boot - (record.last_reset or 0) >= self._times.forgotten
            self.resets += 1
            record = replace(
                record,
                resets=record.resets + 1,
                in_a_row=1 if is_first else record.in_a_row + 1,
                last_reset=self._boot,
                is_reset=True,
            )
        # A cpuset that is rewritten resets masks: that is no library's.
        return record if facts.cpuset == record.cpuset else replace(record, in_a_row=1)


def _key(facts: ProcessFacts) -> tuple[int, int]:
    return facts.pid, facts.start


def _left(decision: Decision, reason: str, why: str) -> Decision:
    return replace(decision, verdict=LEFT, reason=reason, why=why)
