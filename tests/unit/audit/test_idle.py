"""For how long an orphan has computed nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from affinityd.audit.model import AuditedProcess, ProcessFacts
from affinityd.audit.orphans import IdleTimes
from tests.support.audit_facts import audited, process, thread


def orphan(*ticks: int, pid: int = 100, memory: int = 2**30, start: int = 5) -> AuditedProcess:
    """Return an orphan whose threads have used this CPU time."""
    threads = tuple(thread("0", pid + place, ticks=it) for place, it in enumerate(ticks))
    facts = replace(process(pid=pid, threads=threads), start=start)
    assert facts.holding is not None
    holding = replace(facts.holding, memory_bytes=memory)
    return audited(replace(facts, holding=holding), orphan="nothing owns it")


def worker(ticks: int) -> AuditedProcess:
    facts: ProcessFacts = process(pid=200, holder=100, threads=(thread("0", 200, ticks=ticks),))
    return audited(facts)


@pytest.mark.parametrize(
    ("before", "after", "seconds"),
    [
        pytest.param([orphan(7, 3)], [orphan(7, 3)], 15.0, id="nothing has changed"),
        pytest.param([orphan(7, 3)], [orphan(7, 4)], 0.0, id="a thread of it has worked"),
        pytest.param([orphan(7)], [orphan(7, 0)], 0.0, id="it has started a thread"),
        pytest.param([orphan(7)], [orphan(7, memory=1)], 0.0, id="its GPU memory is another"),
        pytest.param([orphan(7), worker(1)], [orphan(7), worker(1)], 15.0, id="its worker waits"),
        pytest.param([orphan(7), worker(1)], [orphan(7), worker(2)], 0.0, id="its worker works"),
        pytest.param([orphan(7)], [orphan(7, start=6)], 0.0, id="another process has its number"),
        pytest.param([], [orphan(7)], 0.0, id="it is new"),
    ],
)
def test_idle_is_what_neither_works_nor_has_others_work(
    before: list[AuditedProcess], after: list[AuditedProcess], seconds: float
) -> None:
    idle = IdleTimes()
    idle.seconds(before, 100.0)
    assert idle.seconds(after, 115.0) == {100: seconds}


def test_idle_time_counts_from_the_last_change_on() -> None:
    idle = IdleTimes()
    times = [idle.seconds([orphan(ticks)], now) for ticks, now in ((1, 0.0), (2, 9.0), (2, 20.0))]
    assert times == [{100: 0.0}, {100: 0.0}, {100: 11.0}]


def test_what_is_no_orphan_is_not_followed() -> None:
    assert IdleTimes().seconds([audited(process("0"))], 1.0) == {}
