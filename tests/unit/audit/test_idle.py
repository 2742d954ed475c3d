"""For how long an orphan has computed nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from affinityd.audit.model import AuditedProcess, Holding
from affinityd.audit.orphans import IdleTimes
from tests.support.audit_facts import GPU, audited, process, thread


def orphan(*ticks: int, memory: int = 2**30, start: int = 5) -> AuditedProcess:
    """Return an orphan whose threads have used this CPU time."""
    threads = tuple(thread("0", 100 + place, ticks=it) for place, it in enumerate(ticks))
    holding = Holding(100, GPU, memory)
    facts = replace(process(threads=threads), start=start, holding=holding)
    return audited(facts, orphan="nothing owns it")


def worker(ticks: int) -> AuditedProcess:
    return audited(process(pid=200, holder=100, threads=(thread("0", 200, ticks=ticks),)))


@pytest.mark.parametrize(
    ("before", "after", "seconds"),
    [
        ([orphan(7, 3)], [orphan(7, 3)], 15.0),
        ([orphan(7, 3)], [orphan(7, 4)], 0.0),
        ([orphan(7)], [orphan(7, 0)], 0.0),  # it has started a thread
        ([orphan(7)], [orphan(7, memory=1)], 0.0),
        ([orphan(7), worker(1)], [orphan(7), worker(1)], 15.0),
        ([orphan(7), worker(1)], [orphan(7), worker(2)], 0.0),
        ([orphan(7)], [orphan(7, start=6)], 0.0),  # another process has its number
        ([], [orphan(7)], 0.0),
    ],
)
def test_idle_is_what_neither_works_nor_has_others_work(
    before: list[AuditedProcess], after: list[AuditedProcess], seconds: float
) -> None:
    idle = IdleTimes()
    idle.seconds(before, 100.0)
    assert idle.seconds(after, 115.0) == {100: seconds}


def test_idle_time_counts_from_the_last_change_on_and_for_orphans_alone() -> None:
    idle = IdleTimes()
    looks = ((1, 0.0), (2, 9.0), (2, 20.0))
    times = [idle.seconds([orphan(ticks), worker(1)], now)[100] for ticks, now in looks]
    assert times == [0.0, 0.0, 11.0]
    assert idle.seconds([audited(process("0"))], 1.0) == {}
