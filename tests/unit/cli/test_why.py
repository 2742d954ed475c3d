"""The output of `affinityd why` for two readings."""

import pytest

from affinityd.audit.waits import Waits
from affinityd.cli.commands.why import Moment, table
from affinityd.linux.processes import Stat, Thread
from affinityd.linux.scheduling import ThreadTime
from tests.support.audit_facts import process

STAT = Stat(7, "x", "R", 1, 7, 7, 0, 0, 0, 1, 100, 0)
TIMES = {7: ThreadTime(1.0, 1.0), 8: ThreadTime(1.0, 3.0)}
CPUS = frozenset({0})


@pytest.mark.parametrize(
    ("waits", "first", "last"),
    [
        (
            Waits(5.0, 4.0, 2.0, CPUS, threads=TIMES),
            "its threads waited 4.00 s in 5.0 s for CPU 0",
            "no remedy is known: no fact explains the wait",
        ),
        (
            Waits(5.0, None, 2.0, CPUS, threads=TIMES),
            "how long it waited for CPU 0 is not measurable: short-lived threads",
            "no remedy is known: no fact explains the wait",
        ),
        (Waits(500.0, 4.0, 2.0, CPUS, threads=TIMES), "waited 4.00 s", "no remedy is needed"),
    ],
)
def test_the_threads_that_waited_longest_come_first(waits: Waits, first: str, last: str) -> None:
    threads = tuple(Thread(tid, "x", 100, CPUS, 0, 0) for tid in TIMES)
    lines = [*table(STAT, Moment(process(pid=7, threads=threads), None), waits, None)]
    assert [line.split()[-1] for line in lines if line.split()[1:2] == ["x"]] == ["3.00", "1.00"]
    assert first in lines[0]
    assert lines[-1] == last


def test_other_facts_are_shown_if_there_are_any() -> None:
    waits = Waits(5.0, 4.0, 1.0, CPUS, throttled=3.5, used_up=0.7, limited="/limit", stolen=0.5)
    lines = [*table(STAT, Moment(process(pid=7), None), waits, "raise it")]
    assert lines[1:3] == [
        "throttled: 3.50 s, as its cgroup /limit had used up its limit in 70% of the periods",
        "stolen: 0.50 s, which the hypervisor took from these CPUs",
    ]
    assert lines[-1] == "remedy: raise it"
