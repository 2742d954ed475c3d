"""Exponential backoff per process: after repeated resets wait longer before pinning, then give up.

A library may change masks on purpose: a pin is repeated, but not for ever. The caller passes the
time, in seconds since boot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from affinityd.audit.facts.gather import TICKS
from affinityd.audit.facts.process import ProcessFacts
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

MOST_GIVEN = 16  #: latest masks of affinityd's that are kept for each process

SO_FAR = "it started {age:.0f} s ago, and is left alone for its first {grace:.0f} s"
RESET = "its masks were reset {times} in a row after a pin, by itself or by its scheduler: "
AGAIN = "its pin was refused {times} in a row ({refusal}): "
LATER = "the next pin is in {rest:.0f} s"
END = "it is not pinned again until its cpuset changes"
ENOUGH = END + (
    "; check what it sets (OMP_PROC_BIND, GOMP_CPU_AFFINITY, KMP_AFFINITY, numactl "
    "in its script), or leave it alone by a rule of the policy"
)

GRACE = 10.0  #: seconds from a process's start: it may yet pin itself
WAITS = (0, 0, 30, 60, 120, 240)  #: seconds from a pin to the next, by pins in a row
REST = 3600.0  #: seconds without a reset, and the next is the first in a row


@dataclass(frozen=True)
class PinRecord:
    """The history of one process."""

    given: tuple[CpuSet, ...] = ()  #: affinityd's masks, also as the kernel narrowed them
    asked: CpuSet | None = None  #: its last requested mask
    pins: int = 0
    last_pin: float | None = None  #: or the last try, which was refused
    refusal: str | None = None  #: why the last try was refused, of some threads at least
    cpuset: CpuSet | None = None  #: its own at the last pin
    resets: int = 0
    last_drift: float = 0.0  #: when it was found elsewhere last
    in_a_row: int = 0  #: pins and refusals with no long rest between, and under one cpuset
    is_reset: bool = False  #: since the last pin, or that one was refused, or cut short


class Backoff:
    """Records each process's pins, and when it may be pinned next."""

    def __init__(self) -> None:
        self.resets = 0  #: of all processes
        self._boot = 0.0
        self._records: Recent[tuple[int, int], PinRecord] = Recent()  # by pid and start

    def begin(self, boot: float) -> None:
        """Begin another scan; `boot`: when, seconds since boot."""
        self._boot = boot
        self._records.begin(boot)

    def record(self, facts: ProcessFacts) -> PinRecord:
        """Return the history of a process."""
        return self._records.get((facts.pid, facts.start)) or PinRecord()

    def given(self, facts: ProcessFacts) -> frozenset[CpuSet]:
        """Return affinityd's masks of a process, also as the kernel narrowed them."""
        return frozenset(self.record(facts).given)

    def after_waiting(self, decision: Decision) -> Decision:
        """Return the decision; a process whose wait is not over is left alone for now."""
        facts, record = decision.process.facts, self.record(decision.process.facts)
        if decision.verdict == FITS and record.is_reset:  # its next change is another reset
            self._set(facts, replace(record, is_reset=False, refusal=None))
        if decision.verdict != DRIFTED:
            return decision
        age = self._boot - facts.start / TICKS
        if age < GRACE:
            return _left(decision, YOUNG, SO_FAR.format(age=age, grace=GRACE))
        if record.last_pin is None or _is_ours(decision, record):
            return decision
        since_pin = self._boot - record.last_pin
        # A cpuset that is rewritten resets masks: that is no library's.
        is_first = self._boot - record.last_drift >= REST or facts.cpuset != record.cpuset
        self.resets += not record.is_reset
        record = replace(
            record,
            resets=record.resets + (not record.is_reset),
            last_drift=self._boot,
            in_a_row=min(record.in_a_row, 1) if is_first else record.in_a_row,
            is_reset=True,
        )
        self._set(facts, record)
        return _waiting(decision, record, since_pin)

    def note(self, attempt: PinAttempt) -> None:
        """Record the outcome of a pin."""
        decision, outcome = attempt.decision, attempt.outcome
        facts, target = decision.process.facts, decision.target
        if target is None or not (outcome.pinned or outcome.refused):
            return
        before = self.record(facts)
        is_in_a_row = not outcome.is_late and not _is_ours(decision, before)
        new = [mask for mask in (outcome.cut, target.cpus) if mask is not None]
        given = (*(mask for mask in before.given if mask not in new), *new)
        record = replace(
            before,
            given=given[-MOST_GIVEN:],
            asked=target.cpus,
            pins=before.pins + (outcome.pinned > 0),
            last_pin=self._boot,
            refusal=outcome.error,
            cpuset=facts.cpuset,
            in_a_row=before.in_a_row + is_in_a_row,
            is_reset=outcome.refused > 0 or outcome.is_late,
        )
        self._set(facts, record)

    def _set(self, facts: ProcessFacts, record: PinRecord) -> None:
        self._records[facts.pid, facts.start] = record


def _waiting(decision: Decision, record: PinRecord, since_pin: float) -> Decision:
    """Return the decision about a process that was reset, or refused, so often in a row."""
    happened = (RESET if record.refusal is None else AGAIN).format(
        times=count(record.in_a_row, "time"), refusal=record.refusal
    )
    if record.in_a_row >= len(WAITS):
        return _left(decision, GIVEN_UP, happened + (ENOUGH if record.refusal is None else END))
    rest = WAITS[record.in_a_row] - since_pin
    return decision if rest <= 0 else _left(decision, WAITING, happened + LATER.format(rest=rest))


def _is_ours(decision: Decision, record: PinRecord) -> bool:
    """Whether a drifted process is where it was pinned: its plan has changed since."""
    facts, target = decision.process.facts, decision.target
    if target is None or target.cpus == record.asked:
        return False
    return target.drifted_masks(facts) <= {*record.given}


def _left(decision: Decision, reason: str, why: str) -> Decision:
    return replace(decision, verdict=LEFT, reason=reason, why=why)
