"""Measurements of processes between two readings, whatever the processes do in between."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from affinityd.audit import wait_meter
from affinityd.audit.wait_meter import Other, WaitMeter, runners_beside
from affinityd.audit.waits import NEIGHBOR, OWN_THREADS, SYSTEM, THROTTLED, Waits, remedy
from affinityd.linux.processes import ProcessTable, Stat, Thread
from affinityd.linux.scheduling import TICKS
from tests.support.audit_facts import process

PID = 7
BEGAN = 100  #: clock ticks since boot
MOUNT = "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


class Node:
    """A folder that stands for a machine with one process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("proc/self/mountinfo", MOUNT)
        self.write("proc/self/schedstat", "0 0 0\n")
        self.write("proc/stat", "cpu0 0 0 0 0 0 0 0 0 0 0\n")
        self.meter = WaitMeter(f"{folder}/proc")

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def look(
        self,
        now: float,
        threads: Mapping[int, tuple[float, float]],
        of_ended: float = 0.0,
        cpuset: str = "0",
    ) -> Waits | None:
        """Set how long each thread of the process has run and waited; then measure.

        `of_ended` is for how many seconds ended threads had run.
        """
        for tid, (ran, waited) in threads.items():
            nanoseconds = f"{ran * 1e9:.0f} {waited * 1e9:.0f} 1\n"
            self.write(f"proc/{PID}/task/{tid}/schedstat", nanoseconds)
        its = [
            Thread(tid, "x", BEGAN, frozenset({0}), 0, round(ran * TICKS))
            for tid, (ran, _) in threads.items()
        ]
        ran = of_ended + sum(ran for ran, _ in threads.values())
        ticks, group = round(ran * TICKS), "0::/limited\n"
        waiter = process(
            pid=PID, start=BEGAN, threads=tuple(its), cgroups=group, cpu_ticks=ticks, cpuset=cpuset
        )
        processes = ProcessTable(f"{self.folder}/proc")
        return self.meter.look([waiter], processes, now).get(PID)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_waits_that_one_scan_could_not_see_count_at_the_next_scan(node: Node) -> None:
    node.look(1000, {PID: (1, 1)})
    assert node.meter.look([], ProcessTable(f"{node.folder}/proc"), 1010) == {}
    waits = node.look(1020, {PID: (2, 10)})
    assert waits is not None
    assert waits.seconds == 20
    assert waits.waited == pytest.approx(9)


def test_all_time_of_a_thread_that_began_after_the_last_reading_counts(node: Node) -> None:
    node.look(1000, {PID: (1, 1)})
    waits = node.look(1010, {PID: (2, 1), PID + 1: (3, 5)})
    assert waits is not None
    assert waits.waited == pytest.approx(5)


def test_the_waits_of_a_thread_that_ran_for_less_than_a_tick_are_known(node: Node) -> None:
    node.look(1000, {PID: (1, 1), PID + 1: (1, 1)})
    waits = node.look(1010, {PID: (1, 1), PID + 1: (1.001, 10)})
    assert waits is not None
    assert waits.waited == pytest.approx(9)


def test_the_remedy_unbinds_threads_that_are_all_bound_to_one_of_several_cpus(
    node: Node,
) -> None:
    threads = {PID + number: (10.0, 0.0) for number in range(4)}
    node.look(1000, threads)
    waits = node.look(1010, dict.fromkeys(threads, (12.5, 7.5)), cpuset="0-3")
    assert waits is not None
    assert (waits.cause, waits.is_bound_to_one) == (OWN_THREADS, True)
    for bound_by, begins in (
        (None, "its threads are all bound to CPU 0, though it may use others: affinityd why"),
        ("Slurm", "its threads are all bound to CPU 0 by Slurm, though it may use others: remove"),
    ):
        assert (remedy(waits, None, bound_by) or "").startswith(begins)


def test_counters_that_were_reset_add_no_time(node: Node) -> None:
    """A new cgroup resets counters, and so does a thread that takes the main thread's id."""
    node.write("sys/fs/cgroup/limited/cpu.stat", "throttled_usec 900000000\n")
    node.look(1000, {PID: (500, 400)})
    node.write("sys/fs/cgroup/limited/cpu.stat", "throttled_usec 3\n")
    waits = node.look(1010, {PID: (1, 1)})
    assert waits is not None
    assert (waits.throttled, waits.waited) == (0, 0)


@pytest.mark.parametrize(("used_up", "cause"), [(90, THROTTLED), (10, None)])
def test_a_limit_that_was_used_up_in_most_periods_is_the_cause(
    node: Node, used_up: int, cause: str | None
) -> None:
    stat = "nr_periods {}\nnr_throttled {}\nthrottled_usec {}\n"
    node.write("sys/fs/cgroup/limited/cpu.stat", stat.format(50, 50, 0))
    node.look(1000, {PID: (1, 1)})
    node.write("sys/fs/cgroup/limited/cpu.stat", stat.format(150, 50 + used_up, 1_000_000))
    waits = node.look(1010, {PID: (3, 9)})
    assert waits is not None
    assert waits.throttled == pytest.approx(1)
    assert waits.cause == cause


@pytest.mark.parametrize(
    ("of_ended", "waited"), [(0.0, 3.0), (0.2, 3.0), (2.0, None)], ids="{} s".format
)
def test_waits_of_a_process_with_short_lived_threads_are_not_measurable(
    node: Node, of_ended: float, waited: float | None
) -> None:
    """The CPU time includes that of ended threads, whose waits are not known."""
    node.look(1000, {PID: (1, 1)})
    waits = node.look(1010, {PID: (5, 4)}, of_ended=of_ended)
    assert waits is not None
    assert waits.waited == waited


def test_time_that_the_hypervisor_took_belongs_to_cpus_not_to_a_process(node: Node) -> None:
    node.look(1000, {PID: (1, 1)})
    node.write("proc/stat", "cpu0 0 0 0 0 0 0 0 64 0 0\n")
    waits = node.look(1010, {PID: (2, 1)})
    assert waits is not None
    assert (waits.stolen, waits.waited) == (64 / TICKS, 0)


def test_the_waits_of_many_alike_threads_all_count(node: Node) -> None:
    """The waits of threads that had not run before count, too: such threads wait longest."""
    node.look(1000, {PID + number: (10, 0) for number in range(300)})
    node.look(1010, {PID + number: (10 + (number < 200), 0) for number in range(300)})
    waits = node.look(1020, {PID + number: (12, 9) for number in range(300)})
    assert waits is not None
    assert waits.waited == pytest.approx(300 * 9)


def other(pid: int, ran: float, mask: set[int], parent: int = 1, uid: int = 1000) -> Other:
    stat = Stat(pid, "x", "R", parent, pid, pid, 0, 0, 0, 1, BEGAN, 0)
    return Other(stat, ran, frozenset(mask), uid, None, None)


def test_the_process_that_ran_longest_on_the_same_cpus_is_named() -> None:
    others = [other(8, 50, set(range(100))), other(9, 4, {0}), other(10, 99, {1})]
    runners = runners_beside(process("0-3", pid=PID), frozenset({0}), others)
    assert [(runner.pid, runner.ran) for runner in runners] == [(9, 4), (8, 0.5)]


@pytest.mark.parametrize(("uid", "kind"), [(1000, OWN_THREADS), (1001, NEIGHBOR)])
def test_processes_that_a_daemon_starts_for_two_users_are_two_jobs(uid: int, kind: str) -> None:
    waiter = process("0", pid=PID, parent=5)
    (runner,) = runners_beside(waiter, waiter.cpus, [other(8, 1, {0}, parent=5, uid=uid)])
    assert runner.kind == kind


def test_a_process_runs_wherever_any_of_its_threads_may(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = {8: frozenset({0}), 81: frozenset({1}), 82: None}  # bound by OpenMP; 82 has ended
    monkeypatch.setattr(wait_meter, "thread_ids", lambda _pid, _proc: [*masks])
    monkeypatch.setattr(wait_meter, "mask_of", masks.get)
    assert Other.of(other(8, 1, set()).stat, 1.0, "/no/proc").mask == {0, 1}


@pytest.mark.parametrize(
    ("cgroup", "kind"),
    [
        ("/system.slice/chronyd.service", SYSTEM),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/run-u1.service", NEIGHBOR),
        ("/user.slice/user-1000.slice/session-3.scope", NEIGHBOR),
    ],
)
def test_a_user_s_service_is_no_daemon_of_the_node(node: Node, cgroup: str, kind: str) -> None:
    node.write("proc/8/cgroup", f"0::{cgroup}\n")
    node.write("proc/8/status", "Name:\tx\nUid:\t1000\t1000\n")
    stat = other(8, 1, set()).stat
    assert Other.of(stat, 1.0, f"{node.folder}/proc").kind(process("0", pid=PID)) == kind
