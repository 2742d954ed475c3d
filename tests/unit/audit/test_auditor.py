"""CPU time from scan to scan, and since when there is a mismatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from affinityd.audit.auditor import REMEMBERED, CpuTimeCounters
from affinityd.audit.model import (
    AuditedProcess,
    ContainerResources,
    CpuTime,
    GpuKey,
    Job,
    Membership,
)
from affinityd.linux.processes import Thread
from tests.support.audit_facts import GPU, audited, process, thread

JOB = Job("slurm", "7")
OTHER = ("nvidia", 1)
EVERY = 15.0
OF_JOB, NO_JOB = Membership(JOB), Membership()


def of(
    *threads: Thread, membership: Membership = OF_JOB, place: str | None = "4-7"
) -> AuditedProcess:
    return audited(process(threads=threads, membership=membership), near=place)


def near(ticks: int, tid: int = 1, start: int = 5) -> Thread:
    return thread("4-7", tid, last_cpu=4, ticks=ticks, start=start)


def far(ticks: int, tid: int = 1, start: int = 5) -> Thread:
    return thread("0-7", tid, last_cpu=0, ticks=ticks, start=start)


def booked(*scans: Sequence[AuditedProcess]) -> CpuTimeCounters:
    """Book scans, EVERY seconds apart, the first 100 s after boot, with 100 ticks a second."""
    ledger = CpuTimeCounters(100)
    for number, processes in enumerate(scans):
        ledger.book(processes, [GPU, OTHER], 100.0 + number * EVERY)
    assert ledger.gpu_time[OTHER] == CpuTime(0, 0), "it is not used"
    return ledger


@pytest.mark.parametrize(
    ("scans", "expected"),
    [
        ([[of(near(500))]], (0, 0)),  # the first scan knows no difference
        ([[of(near(500))], [of(near(700))]], (2, 0)),
        ([[of(far(500))], [of(far(700))]], (2, 2)),
        ([[of(near(500))], [of(far(700))]], (2, 2)),  # all of it goes where it ran last
        ([[of(far(500))], [of(far(600))], [of(near(900))]], (4, 1)),
        ([[of(near(100, 1), far(100, 2))], [of(near(200, 1), far(400, 2))]], (4, 3)),
        # What started since counts in full, what started before was not looked at.
        ([[], [of(far(500, start=10_001))]], (5, 5)),
        ([[], [of(far(500, start=9_999))]], (0, 0)),
        ([[of(far(500))], [of(far(100, start=10_500))]], (1, 1)),  # its number is used again
        ([[of(far(500))], []], (0, 0)),
        ([[of(far(500))], [], [of(far(900))], [of(far(950))]], (0.5, 0.5)),  # not seen for a while
        ([[of(far(500))], [of(far(400))], [of(far(500))]], (1, 1)),  # never backwards
        # Where it is not known what is near nothing is remote; beside any of its GPUs all is near.
        ([[of(far(0), place=None)], [of(far(100), place=None)]], (1, 0)),
        ([[of(far(0), place="0-7")], [of(far(100), place="0-7")]], (1, 0)),
    ],
)
def test_cpu_time_adds_up(scans: list[list[AuditedProcess]], expected: tuple[float, float]) -> None:
    ledger = booked(*scans)
    assert ledger.gpu_time[GPU] == CpuTime(*expected)
    assert ledger.job_time.get(JOB, CpuTime()) == CpuTime(*expected)


def test_known_daemons_cost_nothing_and_what_is_of_no_job_counts_for_its_gpu_alone() -> None:
    def look(ticks: int) -> list[AuditedProcess]:
        daemon = audited(process(threads=(far(ticks, 2),)), is_daemon=True)
        return [of(far(ticks), membership=NO_JOB), daemon]

    ledger = booked(look(0), look(100))
    assert (ledger.gpu_time[GPU], ledger.job_time) == (CpuTime(1, 1), {})


def test_a_container_that_kubelet_names_counts_for_itself() -> None:
    pod = Job("kubernetes", "b7")
    given = ContainerResources("team", "train", "main", {}, frozenset(), frozenset(), frozenset())
    scans = [[of(far(ticks), membership=Membership(pod))] for ticks in (0, 100, 300)]
    for it in scans[1:]:
        it[0] = replace(it[0], facts=replace(it[0].facts, given=given))
    named = Job("kubernetes", "b7", "team", "train", "main")
    ledger = booked(*scans)
    assert ledger.job_time == {pod: CpuTime(), named: CpuTime(3, 3)}


def test_a_job_is_remembered_for_a_while_after_its_last_process() -> None:
    ledger = booked([of(far(0))], [of(far(100))])
    gone = 100.0 + EVERY
    ledger.book([], [GPU], gone + REMEMBERED - 1)
    assert ledger.job_time == {JOB: CpuTime(1, 1)}
    ledger.book([], [GPU], gone + REMEMBERED)
    assert ledger.job_time == {}
    assert ledger.gpu_time[GPU] == CpuTime(1, 1)


def seen(mask: str, *, gpu: GpuKey = GPU, is_daemon: bool = False) -> AuditedProcess:
    """Return what a scan saw of a job, which may run on CPU 0 far from its GPU or on CPU 4."""
    cause = "mask" if mask == "0" else None
    facts = process(mask, pid=100 + gpu[1], gpu=gpu, membership=OF_JOB)
    return audited(facts, "remote" if cause else "local", cause=cause, is_daemon=is_daemon)


FAR, NEAR, ELSEWHERE = seen("0"), seen("4"), seen("0", gpu=OTHER)
Look = tuple[list[AuditedProcess], list[GpuKey]]
IS_FAR: Look = ([FAR], [])
IS_NEAR: Look = ([NEAR], [])
GONE: Look = ([], [])
HIDDEN: Look = ([], [GPU])
BOTH = {GPU: 0, JOB: 0}


def noted(*scans: Look, every: float = EVERY) -> dict[GpuKey | Job, float]:
    """Return since when there is a mismatch, as the number of a scan, after these scans."""
    ledger = CpuTimeCounters(100)
    since = {}
    for moment, (processes, unknown) in enumerate(scans):
        ledger.book(processes, [GPU, OTHER], 100.0 + moment * every)
        since = dict(ledger.note(processes, unknown, float(moment)))
    return since


@pytest.mark.parametrize(
    ("scans", "since"),
    [
        ([IS_NEAR], {}),
        ([IS_NEAR, IS_FAR, IS_FAR], {GPU: 1, JOB: 1}),
        ([IS_FAR, IS_NEAR, IS_FAR], {GPU: 2, JOB: 2}),  # another one is new
        ([IS_FAR, GONE], {}),
        # What cannot be seen is neither told nor forgotten.
        ([IS_FAR, HIDDEN], {}),
        ([IS_FAR, HIDDEN, IS_FAR], BOTH),
        ([IS_FAR, ([NEAR], [OTHER]), IS_FAR], {GPU: 2, JOB: 2}),
        ([([FAR, ELSEWHERE], []), ([FAR], [OTHER]), ([ELSEWHERE], [])], {OTHER: 0, JOB: 0}),
        ([([seen("0", is_daemon=True)], [])], {}),
    ],
)
def test_a_mismatch_has_a_beginning(scans: list[Look], since: dict[GpuKey | Job, float]) -> None:
    assert noted(*scans) == since
