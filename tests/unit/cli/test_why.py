"""What `affinityd why` counts between two moments."""

from __future__ import annotations

from affinityd.audit.waits import CAUSES, Waits
from affinityd.cli.commands.why import Moment, table
from affinityd.linux.processes import Stat, Thread
from affinityd.linux.scheduling import ThreadTime
from tests.support.audit_facts import process

MAIN, ENDS, BEGINS = (7, 100), (8, 100), (8, 900)  # the last one has the tid of the second
STAT = Stat(7, "x", "R", 1, 7, 0, 0, 0, 1, 100, 0)


def moment(switches: dict[tuple[int, int], int]) -> Moment:
    """Return a moment at which threads have been switched so often."""
    its = (Thread(tid, "x", start, frozenset({0}), 0, 0) for tid, start in switches)
    facts = process(pid=7, threads=tuple(its))
    return Moment(facts, {name: (number, None) for name, number in switches.items()}, {}, None)


def test_a_thread_that_ended_takes_nothing_back_and_its_tid_may_be_another_s() -> None:
    before, after = moment({MAIN: 5, ENDS: 900}), moment({MAIN: 8, BEGINS: 4})
    causes = {**dict.fromkeys(CAUSES, 0.0), "unknown": 4.0}
    times = {7: ThreadTime(1.0, 1.0), 8: ThreadTime(1.0, 3.0)}
    waits = Waits(5.0, causes, frozenset({0}), threads=times)
    lines = [*table(STAT, before, after, waits, None)]
    assert [line.split()[-1] for line in lines if line.split()[1:2] == ["x"]] == ["3.00", "1.00"]
    assert "its threads had to make room for others 7 times" in lines
    assert lines[-1] == "no remedy is known: no known cause has much of it"
