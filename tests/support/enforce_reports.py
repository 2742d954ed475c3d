"""Reports for tests: what is to become of processes on the two GPUs of a machine with two nodes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from affinityd.audit.model import GpuKey, Job
from affinityd.config.settings import PIN
from affinityd.cpuset import CpuSet, parse_list
from affinityd.enforce.decide import PinRecord
from affinityd.enforce.document import Enforced, TotalsDocument
from affinityd.enforce.model import (
    DRIFTED,
    FITS,
    LEFT,
    PIN_OUTCOMES,
    Decision,
    PinAttempt,
    TargetCpus,
)
from affinityd.enforce.policy import PolicyState, Treatment
from affinityd.linux import pinning
from affinityd.linux.pinning import PinResult, ThreadBefore, ThreadResult
from tests.support.scans import MACHINE, process, scan

TIME = 1_790_000_000.25  #: of the scan; it is 100 s since boot then

JOB = Job("slurm", "7")
STANDARD = TargetCpus(parse_list("0-3"), parse_list("0-7"), frozenset({parse_list("0-7")}))


def fits(pid: int = 100, **more: Any) -> Decision:  # noqa: ANN401 - what `process` takes
    return Decision(process(pid, **more), FITS, JOB, treatment=Treatment(), target=STANDARD)


def drifted(
    pid: int = 100,
    cause: str = "mask",
    *,
    rule: int | None = None,
    **more: Any,  # noqa: ANN401
) -> Decision:
    """Return that a process does not; with the cause `share` it is near its GPU."""
    placement, found = ("local", None) if cause == "share" else ("remote", cause)
    its = process(pid, cause=found, placement=placement, **more)
    of = Treatment(rule=rule)
    return Decision(its, DRIFTED, JOB, treatment=of, target=STANDARD, cause=cause, drifted=2)


def left(
    pid: int = 100,
    reason: str = "no_job",
    *,
    job: Job | None = JOB,
    cause: str | None = None,
    would: str | None = None,
    **more: Any,  # noqa: ANN401 - what `process` takes
) -> Decision:
    """Return that it is let alone: `cause` is the audit's, `would` why it would be pinned."""
    its = process(pid, cause=cause, placement="remote" if cause else "local", **more)
    return Decision(its, LEFT, job, cause=would, reason=reason, why="so it is")


def result(
    pinned: int = 0,
    refused: int = 0,
    *,
    fitting: int = 0,
    cut: CpuSet | None = None,
    error: str = "",
    is_settled: bool = True,
    is_late: bool = False,
) -> PinResult:
    """Return the result of a pin of so many threads, of which `cut` have these CPUs at most."""
    asked = STANDARD.cpus
    right = ThreadResult(100, 1, pinning.PINNED, asked, asked)
    was_set = replace(right, held=asked if cut is None else cut, was_set=True)
    failed = replace(right, outcome=pinning.REFUSED, reason=error)
    threads = (*[was_set] * pinned, *[failed] * refused, *[right] * fitting)
    return PinResult(threads, is_settled, is_late)


def done(decision: Decision, of: PinResult) -> PinAttempt:
    """Return that this was the result of its pin, of threads that were on CPUs 4-7."""
    assert decision.target is not None
    before = [ThreadBefore(1, 0, parse_list("4-7"))] if any(it.was_set for it in of.threads) else []
    replaced = {decision.process.facts.pid: before}
    return PinAttempt(decision, decision.target, replace(of, replaced=replaced))


def enforced(
    *decisions: Decision,
    unknown: Mapping[GpuKey, str] | None = None,
    **more: Any,  # noqa: ANN401 - what Report takes
) -> Enforced:
    """Return a report of these decisions; `more`: what it has besides."""
    found = scan(*(it.process for it in decisions), unknown=unknown)
    base = Enforced(
        MACHINE,
        replace(found, time=TIME, boot=100.0),
        wanted=PIN,
        does=PIN,
        hindrance=None,
        policy=PolicyState(),
        decisions=decisions,
        records={it.process.facts.pid: PinRecord() for it in decisions},
        totals=totals(),
    )
    return replace(base, **more)


def totals(*, threads: int = 0, resets: int = 0, **pins: int) -> TotalsDocument:
    counted = {outcome: pins.get(outcome, 0) for outcome in PIN_OUTCOMES}
    return TotalsDocument(counted, threads, resets)
