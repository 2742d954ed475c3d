"""CPU time that processes use from one scan to the next."""

from collections.abc import Sequence
from dataclasses import replace
from threading import Event

import pytest

from affinityd.audit.auditor import CpuTimeCounters, ScanRecords
from affinityd.audit.model import AuditedProcess, CpuTime, Scan
from affinityd.audit.waits import Waits
from affinityd.linux.processes import Thread
from affinityd.threads import Answers
from tests.support.audit_facts import GPU, audited, process, thread
from tests.support.daemons import PATIENCE, eventually

OTHER = ("nvidia", 1)
EVERY = 15.0
HIDDEN: Sequence[AuditedProcess] = ()  #: a scan of a GPU whose processes are not known


def of(
    *threads: Thread,
    place: str | None = "4-7",
    pid: int = 100,
    ended: int = 0,
    children: int = 0,
    parent: int = 1,
) -> AuditedProcess:
    """Return a process; `ended` and `children` are ticks of its ended threads and children."""
    start = min(its.start for its in threads)
    ticks = ended + sum(its.cpu_ticks for its in threads)
    facts = process(
        pid=pid,
        threads=threads,
        start=start,
        cpu_ticks=ticks,
        children_ticks=children,
        parent=parent,
    )
    return audited(facts, near=place)


def near(ticks: int, tid: int = 1, start: int = 5) -> Thread:
    return thread("4-7", tid, last_cpu=4, ticks=ticks, start=start)


def far(ticks: int, tid: int = 1, start: int = 5) -> Thread:
    return thread("0-7", tid, last_cpu=0, ticks=ticks, start=start)


def test_user_names_that_a_directory_service_gives_late_appear_at_a_later_scan() -> None:
    answers, asked = Event(), []

    def name_of(uid: int) -> str | None:
        asked.append(uid)
        if uid == 1:
            answers.wait(PATIENCE)
        return {0: "root", 1: "alice"}.get(uid)

    names = Answers(name_of, 8)
    assert names.look({0, 1, 2}) == {0: "root"}
    answers.set()
    eventually(lambda: names.look({1, 2}) == {1: "alice"}, "the directory service has answered")
    assert sorted(asked) == [0, 1, 2], "each name is asked for once"


#: A child that had used 2 s at the first scan.
CHILD = of(far(200, 2), pid=200, parent=100)
GRANDCHILD = of(far(300, 3), pid=300, parent=200)


def booked(*scans: Sequence[AuditedProcess]) -> CpuTimeCounters:
    """Book the CPU time of scans that are EVERY seconds apart; a second has 100 ticks.

    The first is 100 s after boot. A process that a scan lacks has ended; HIDDEN sees no process.
    """
    total, hidden = CpuTime(), [False]
    ledger = CpuTimeCounters(100, lambda _pid, _start: not hidden[0])
    for number, processes in enumerate(scans):
        hidden[0] = processes == HIDDEN
        unknown = [GPU] if hidden[0] else []
        used = ledger.book(processes, [GPU, OTHER], 100.0 + number * EVERY, {}, unknown)
        total = sum(used.values(), total)
    assert ledger.gpu_time[GPU] == total
    assert ledger.gpu_time[OTHER] == CpuTime(0, 0), "it is not used"
    return ledger


@pytest.mark.parametrize(
    ("scans", "expected"),
    [
        ([[of(near(500))]], (0, 0)),  # a first scan has nothing to compare with
        ([[of(near(500))], [of(near(700))]], (2, 0)),
        ([[of(far(500))], [of(far(700))]], (2, 2)),
        ([[of(near(500))], [of(far(700))]], (2, 2)),  # all time counts for the last CPU
        ([[of(near(100, 1), far(100, 2))], [of(near(200, 1), far(400, 2))]], (4, 3)),
        # A process that started since the last scan counts in full, an older one only from now on.
        ([[], [of(far(500, start=10_001))]], (5, 5)),
        ([[], [of(far(500, start=9_999))]], (0, 0)),
        ([[of(far(500))], [of(far(100, start=10_500))]], (1, 1)),  # its pid was reused
        ([[of(far(500))], [], [of(far(900))], [of(far(950))]], (0.5, 0.5)),  # a new process
        # Time that a scan could not see counts at the next scan.
        ([[of(far(500))], HIDDEN, [of(far(900))], [of(far(950))]], (4.5, 4.5)),
        ([[], HIDDEN, [of(far(500, start=10_001))]], (5, 5)),
        ([[of(far(500))], *[HIDDEN] * 50, [of(far(900))]], (4, 4)),  # hidden for ten minutes
        # Time of ended threads is divided as that of living ones, or else by the process's CPUs.
        ([[of(far(0))], [of(far(100), ended=300)]], (4, 4)),
        ([[of(near(0))], [of(near(0), ended=300)]], (3, 0)),
        ([[of(far(0))], [of(far(0), ended=300)]], (3, 1.5)),
        ([[of(near(0, 1), far(0, 2))], [of(near(50, 1), far(150, 2), ended=200)]], (4, 3)),
        # The time of ended children is divided alike, unless it was counted while they ran.
        ([[of(far(0)), CHILD], [of(far(0))], [of(far(100), children=500)]], (4, 4)),
        ([[of(far(0)), CHILD, GRANDCHILD], [of(far(100), children=900)]], (5, 5)),
        (
            [[of(far(0)), CHILD, GRANDCHILD], [of(far(0)), CHILD], [of(far(0), children=900)]],
            (4, 2),
        ),
        (
            [[of(far(0)), CHILD], HIDDEN, [of(far(0)), CHILD], [of(far(1), children=300)]],
            (1.01, 1.01),
        ),
        ([[of(far(500))], [of(far(400))], [of(far(500))]], (1, 1)),  # the total never falls
        # If it is not known which CPUs are near, no time is remote.
        ([[of(far(0), place=None)], [of(far(100), place=None)]], (1, 0)),
    ],
)
def test_cpu_time_adds_up(scans: list[list[AuditedProcess]], expected: tuple[float, float]) -> None:
    assert booked(*scans).gpu_time[GPU] == CpuTime(*expected)


def test_the_last_hour_excludes_earlier_time() -> None:
    records = ScanRecords(lambda _pid, _start: False)
    facts = Scan(0.0, 0.0, (), dict.fromkeys((GPU, OTHER), frozenset({4})), {})
    for minute, spent, of_hour in (
        *((0, 50, 0), (1, 55, 5), (59, 60, 10), (60, 62, 12)),
        *((61, 64, 9), (119, 70, 10), (200, 70, 0), (201, 71, 1)),
    ):
        processes = (of(far(100 * spent)),)
        scan = records.add(replace(facts, boot=1000.0 + 60 * minute, processes=processes))
        assert scan.last_hour == {GPU: CpuTime(of_hour, of_hour), OTHER: CpuTime()}, minute
    records.renumber({OTHER: GPU})
    scan = records.add(replace(facts, boot=1000.0 + 60 * 202))
    assert (scan.last_hour[OTHER].total, scan.history[OTHER][-3:]) == (1, "lli")


def test_known_daemons_add_no_time() -> None:
    daemons = ([audited(process(threads=(far(ticks),)), is_daemon=True)] for ticks in (0, 100))
    assert booked(*daemons).gpu_time[GPU] == CpuTime()


def test_throttled_time_of_a_cgroup_counts_once_for_each_gpu() -> None:
    limited = Waits(10.0, 1.0, throttled=4.0, limited="/limit")
    ledger = CpuTimeCounters(100, lambda _pid, _start: False)
    processes = [of(near(0), pid=pid) for pid in (100, 200)]
    ledger.book(processes, [GPU, OTHER], 100.0, {100: limited, 200: limited})
    assert ledger.gpu_time == {GPU: CpuTime(waited=2.0, throttled=4.0), OTHER: CpuTime()}
