"""CPU time from scan to scan, and since when there is a mismatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.audit.cpu_time import REMEMBERED, CpuTimeCounters
from affinityd.audit.model import AuditedProcess, CpuTime, GpuKey, Job, Membership
from affinityd.linux.processes import Thread
from tests.support.audit_facts import GPU, audited, process, thread

JOB = Job("slurm", "7")
OTHER_GPU = ("nvidia", 1)
EVERY = 15.0


def of(*threads: Thread, membership: Membership = Membership(JOB)) -> AuditedProcess:  # noqa: B008
    return audited(process(threads=threads, membership=membership))


def booked(*scans: Sequence[AuditedProcess]) -> CpuTimeCounters:
    """Book scans, EVERY seconds apart, the first 100 s after boot, with 100 ticks a second."""
    ledger = CpuTimeCounters(100)
    for number, processes in enumerate(scans):
        ledger.book(processes, [GPU], 100.0 + number * EVERY)
    return ledger


def near(ticks: int, tid: int = 1, start: int = 5) -> Thread:
    return thread("4-7", tid, last_cpu=4, ticks=ticks, start=start)


def far(ticks: int, tid: int = 1, start: int = 5) -> Thread:
    return thread("0-7", tid, last_cpu=0, ticks=ticks, start=start)


@pytest.mark.parametrize(
    ("scans", "expected"),
    [
        pytest.param([[of(near(500))]], (0, 0), id="the first scan knows no difference"),
        pytest.param([[of(near(500))], [of(near(700))]], (2, 0), id="near"),
        pytest.param([[of(far(500))], [of(far(700))]], (2, 2), id="far"),
        pytest.param(
            [[of(near(500))], [of(far(700))]], (2, 2), id="all of it goes where it ran last"
        ),
        pytest.param(
            [[of(far(500))], [of(far(600))], [of(near(900))]], (4, 1), id="three scans add up"
        ),
        pytest.param(
            [[of(near(100, 1), far(100, 2))], [of(near(200, 1), far(400, 2))]],
            (4, 3),
            id="threads add up",
        ),
        pytest.param(
            [[], [of(far(500, start=10_001))]], (5, 5), id="who started since counts in full"
        ),
        pytest.param(
            [[], [of(far(500, start=9_999))]], (0, 0), id="who started before was not looked at"
        ),
        pytest.param(
            [[of(far(500))], [of(far(100, start=10_500))]],
            (1, 1),
            id="a number that is used again is another thread",
        ),
        pytest.param([[of(far(500))], []], (0, 0), id="one that is gone"),
        pytest.param(
            [[of(far(500))], [], [of(far(900))], [of(far(950))]],
            (0.5, 0.5),
            id="one that was not seen for a while begins anew",
        ),
        pytest.param(
            [[of(far(500))], [of(far(400))], [of(far(500))]], (1, 1), id="never backwards"
        ),
    ],
)
def test_cpu_time_adds_up(scans: list[list[AuditedProcess]], expected: tuple[float, float]) -> None:
    ledger = booked(*scans)
    assert ledger.gpu_time == {GPU: CpuTime(*expected)}
    assert ledger.job_time.get(JOB, CpuTime()) == CpuTime(*expected)


def test_a_gpu_that_nobody_uses_has_a_counter_of_zero() -> None:
    assert booked([]).gpu_time == {GPU: CpuTime(0, 0)}


def test_where_nobody_knows_what_is_near_nothing_is_remote() -> None:
    ledger = CpuTimeCounters(100)
    for moment in (0, 1):
        unplaced = replace(of(far(100 * moment)), near=None)
        ledger.book([unplaced], [GPU], 100.0 + moment)
    assert ledger.gpu_time == {GPU: CpuTime(1, 0)}


def test_what_is_spent_for_two_gpus_is_near_beside_either_and_counts_for_the_first() -> None:
    threads = [(far(100 * moment, 1), near(300 * moment, 2)) for moment in (0, 1)]
    ledger = CpuTimeCounters(100)
    for moment, those in enumerate(threads):
        facts = process(threads=those, beside=(OTHER_GPU,))
        ledger.book([audited(facts, near="0-7")], [GPU, OTHER_GPU], 100.0 + moment)
    assert ledger.gpu_time == {GPU: CpuTime(4, 0), OTHER_GPU: CpuTime(0, 0)}


def test_known_daemons_cost_nothing() -> None:
    daemons = [[audited(process(threads=(far(ticks),)), is_daemon=True)] for ticks in (0, 500)]
    assert booked(*daemons).gpu_time == {GPU: CpuTime(0, 0)}


def test_a_job_is_remembered_for_a_while_after_its_last_process() -> None:
    ledger = booked([of(far(0))], [of(far(100))])
    gone = 100.0 + EVERY
    ledger.book([], [GPU], gone + REMEMBERED - 1)
    assert ledger.job_time == {JOB: CpuTime(1, 1)}
    ledger.book([], [GPU], gone + REMEMBERED)
    assert ledger.job_time == {}
    assert ledger.gpu_time == {GPU: CpuTime(1, 1)}


def test_what_is_of_no_job_counts_for_its_gpu_alone() -> None:
    ledger = booked(*([of(far(ticks), membership=Membership())] for ticks in (0, 100)))
    assert (ledger.gpu_time, ledger.job_time) == ({GPU: CpuTime(1, 1)}, {})


@given(st.lists(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 999), st.booleans()))))
def test_no_counter_ever_goes_back_and_remote_is_a_part_of_all(
    scans: list[list[tuple[int, int, bool]]],
) -> None:
    ledger = CpuTimeCounters(100)
    before = CpuTime()
    for number, threads in enumerate(scans):
        facts = [far(ticks, tid) if is_far else near(ticks, tid) for tid, ticks, is_far in threads]
        ledger.book([of(*facts)], [GPU], 100.0 + number)
        now = ledger.gpu_time[GPU]
        assert now.total >= before.total
        assert now.remote >= before.remote
        assert now.remote <= now.total
        before = now


MISMATCHED = audited(process("0", membership=Membership(JOB)), "remote", cause="mask")
MENDED = audited(process("4", membership=Membership(JOB)))
DAEMON = audited(process("0"), "remote", cause="mask", is_daemon=True)

ELSEWHERE = audited(
    process("0", pid=200, gpu=OTHER_GPU, membership=Membership(JOB)), "remote", cause="mask"
)
BOTH = {GPU: 0, JOB: 0}
Look = tuple[list[AuditedProcess], list[GpuKey]]


def noted(*scans: Look, every: float = EVERY) -> dict[GpuKey | Job, float]:
    """Return since when there is a mismatch, as the number of a scan, after these scans."""
    ledger = CpuTimeCounters(100)
    since = {}
    for moment, (processes, unknown) in enumerate(scans):
        ledger.book(processes, [GPU, OTHER_GPU], 100.0 + moment * every)
        since = dict(ledger.note(processes, unknown, float(moment)))
    return since


@pytest.mark.parametrize(
    ("scans", "since"),
    [
        pytest.param([([MENDED], [])], {}, id="there is none"),
        pytest.param([([MISMATCHED], [])], BOTH, id="from the scan that saw it"),
        pytest.param(
            [([MENDED], []), ([MISMATCHED], [])], {GPU: 1, JOB: 1}, id="and not from the first one"
        ),
        pytest.param([([MISMATCHED], [])] * 3, BOTH, id="while it lasts"),
        pytest.param([([MISMATCHED], []), ([MENDED], [])], {}, id="until it is mended"),
        pytest.param([([MISMATCHED], []), ([], [])], {}, id="or gone"),
        pytest.param(
            [([MISMATCHED], []), ([MENDED], []), ([MISMATCHED], [])],
            {GPU: 2, JOB: 2},
            id="another one is new",
        ),
        pytest.param([([MISMATCHED], []), ([], [GPU])], {}, id="not told while nobody can see it"),
        pytest.param(
            [([MISMATCHED], []), ([], [GPU]), ([MISMATCHED], [])], BOTH, id="and not forgotten"
        ),
        pytest.param(
            [([MISMATCHED], []), ([MENDED], [OTHER_GPU]), ([MISMATCHED], [])],
            {GPU: 2, JOB: 2},
            id="mended while another GPU cannot be seen",
        ),
        pytest.param(
            [([MISMATCHED, ELSEWHERE], []), ([MISMATCHED], [OTHER_GPU]), ([ELSEWHERE], [])],
            {OTHER_GPU: 0, JOB: 0},
            id="one that cannot be seen keeps its own",
        ),
        pytest.param([([DAEMON], [])], {}, id="a known daemon's is none"),
    ],
)
def test_a_mismatch_is_dated_while_it_lasts(
    scans: list[Look], since: dict[GpuKey | Job, float]
) -> None:
    assert noted(*scans) == since


def test_a_job_that_ended_unseen_is_forgotten_though_a_gpu_is_never_seen_again() -> None:
    blind: Look = ([], [OTHER_GPU])
    ended: list[Look] = [([MISMATCHED], []), blind]
    lately = noted(*ended, ([MISMATCHED], []))
    assert lately == {GPU: 2, JOB: 0}
    assert noted(*ended, blind, ([MISMATCHED], []), every=REMEMBERED) == {GPU: 3, JOB: 3}


def test_a_gpu_that_got_anothers_number_begins_anew() -> None:
    ledger = CpuTimeCounters(100)
    for moment in (0, 1):
        ledger.book([of(far(500 * moment))], [GPU], 100.0 + moment)
        since = ledger.note([MISMATCHED], [], float(moment))
    assert (ledger.gpu_time[GPU], since[GPU]) == (CpuTime(5, 5), 0)
    ledger.forget(GPU)
    ledger.book([of(far(600))], [GPU], 102.0)
    since = ledger.note([MISMATCHED], [], 2.0)
    assert (ledger.gpu_time[GPU], since[GPU]) == (CpuTime(1, 1), 2)
    assert (ledger.job_time[JOB], since[JOB]) == (CpuTime(6, 6), 0)
