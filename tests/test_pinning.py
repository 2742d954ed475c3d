"""Every thread of a real process is pinned, and what is reported is what the kernel holds."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from affinityd.cpuset import CpuSet
from affinityd.linux import pinning
from affinityd.linux.pinning import LEFT_ALONE, PINNED, REFUSED, PinResult, pin_threads
from affinityd.linux.processes import descendants, everyone, mask_of, stat_of, thread_ids
from tests.children import CHURN, program, sleeping
from tests.cpusets import cpuset, needs_cpuset

pytestmark = pytest.mark.processes

ALL = frozenset(os.sched_getaffinity(0))
FIRST, SECOND = (frozenset({cpu}) for cpu in sorted(ALL)[:2])

#: Each thread starts the next one, as fast as it can, 200 in all.
CHAIN = """
import sys, threading
left = 200
def work():
    global left
    left -= 1
    if left:
        threading.Thread(target=work).start()
    sys.stdin.read()
threading.stack_size(65536)
print('ready', flush=True)
sys.stdin.readline()
work()
"""

#: A child, which takes milliseconds to fork: 64 Ki small pages have to be copied.
SLOW_FORK = """
import ctypes, mmap, os, sys
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE
held = mmap.mmap(-1, 256 * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(0, len(held), 4096):
    held[page] = 1
print('ready', flush=True)
sys.stdin.readline()
os.fork()
sys.stdin.read()
"""

#: Two threads that never sleep.
BUSY = """
import os, threading
def work():
    while True:
        pass
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
print('ready', flush=True)
input()
"""

#: Three threads; the second has pinned itself to the CPU in argv.
ON_PURPOSE = """
import os, sys, threading
def work(cpu):
    if cpu:
        os.sched_setaffinity(0, {int(cpu)})
    barrier.wait()
    input()
barrier = threading.Barrier(3)
for cpu in (sys.argv[1], None):
    threading.Thread(target=work, args=(cpu,)).start()
barrier.wait()
print('ready', flush=True)
"""

#: A child that has a child; and another child, of two threads, pinned to the CPU in argv.
FAMILY = """
import os, sys, threading
says, hears = os.pipe()[::-1]
def stay():
    os.write(says, b'x')
    sys.stdin.read()
    os._exit(0)
if os.fork() == 0:
    os.fork()
    stay()
if os.fork() == 0:
    os.sched_setaffinity(0, {int(sys.argv[1])})
    threading.Thread(target=stay).start()
    stay()
for _ in range(4):
    os.read(hears, 1)
print('ready', flush=True)
stay()
"""


def masks(pid: int) -> list[CpuSet | None]:
    return [mask_of(tid) for tid in thread_ids(pid)]


def outcomes(pinned: PinResult) -> list[tuple[str, CpuSet]]:
    return [(thread.outcome, thread.held) for thread in pinned.threads]


@pytest.mark.parametrize("attempt", range(10))
def test_no_thread_is_missed_of_200_that_start_each_other_meanwhile(attempt: int) -> None:
    with program(CHAIN) as child:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
        time.sleep(0.001 * attempt)
        pinned = pin_threads(child.pid, FIRST)
        while len(thread_ids(child.pid)) < 200:
            time.sleep(0.001)
        assert set(masks(child.pid)) == {FIRST}
    assert pinned.complete
    assert set(outcomes(pinned)) == {(PINNED, FIRST)}


@pytest.mark.parametrize("milliseconds", [0.5, 1, 1.5])
def test_a_child_that_is_just_being_forked_is_not_missed(milliseconds: float) -> None:
    """It has its parent's old mask already, and is in no list of processes yet."""
    with program(SLOW_FORK) as child:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
        time.sleep(milliseconds / 1000)
        pinned = pin_threads(child.pid, FIRST, tree=True)
        while not (family := descendants(child.pid)):
            time.sleep(0.001)
        assert [mask_of(stat.number) for stat in family] == [FIRST]
    assert [thread.pid for thread in pinned.threads] == [child.pid, family[0].number]


def test_threads_that_never_sleep_are_not_waited_for_long() -> None:
    with program(BUSY) as child:
        start = time.monotonic()
        pinned = pin_threads(child.pid, FIRST)
        took = time.monotonic() - start
    assert outcomes(pinned) == 3 * [(PINNED, FIRST)]
    assert pinned.complete
    assert took < 2


def test_threads_that_come_and_go_for_ever_do_not_keep_it_from_an_end() -> None:
    with program(CHURN) as child:
        pinned = pin_threads(child.pid, FIRST)
        assert pinned.complete
        for _ in range(20):
            assert {mask for mask in masks(child.pid) if mask is not None} == {FIRST}


def test_given_up_before_the_last_passes_were_quiet_it_is_not_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pinning, "MAX_PASSES", pinning.QUIET_PASSES)
    with sleeping() as child:
        first, second = pin_threads(child.pid, FIRST), pin_threads(child.pid, FIRST)
    assert outcomes(first) == [(PINNED, FIRST)]
    assert (first.settled, first.complete) == (False, False)
    assert (second.settled, second.complete) == (True, True)


def test_a_thread_that_pinned_itself_is_left_alone() -> None:
    with program(ON_PURPOSE, str(max(SECOND))) as child:
        pinned = pin_threads(child.pid, FIRST)
        assert masks(child.pid) == [FIRST, SECOND, FIRST]
    assert outcomes(pinned) == [(PINNED, FIRST), (LEFT_ALONE, SECOND), (PINNED, FIRST)]
    assert pinned.complete


def test_a_thread_that_pinned_itself_is_pinned_by_force() -> None:
    with program(ON_PURPOSE, str(max(SECOND))) as child:
        pinned = pin_threads(child.pid, FIRST, force=True)
        assert masks(child.pid) == [FIRST, FIRST, FIRST]
    assert outcomes(pinned) == 3 * [(PINNED, FIRST)]


def test_pinned_again_elsewhere_the_threads_follow_and_the_lone_one_still_does_not() -> None:
    with program(ON_PURPOSE, str(max(SECOND))) as child:
        pin_threads(child.pid, FIRST)
        pin_threads(child.pid, ALL)
        assert masks(child.pid) == [ALL, SECOND, ALL]


def test_a_rehearsal_says_what_would_come_of_it_and_sets_nothing() -> None:
    with program(ON_PURPOSE, str(max(SECOND))) as child:
        pinned = pin_threads(child.pid, FIRST, dry_run=True)
        assert masks(child.pid) == [ALL, SECOND, ALL]
    assert outcomes(pinned) == [(PINNED, FIRST), (LEFT_ALONE, SECOND), (PINNED, FIRST)]
    assert pinned.settled


def test_descendants_are_pinned_with_the_tree_alone() -> None:
    with program(FAMILY, str(max(SECOND))) as child:
        pin_threads(child.pid, FIRST)
        family = [stat.number for stat in descendants(child.pid)]
        assert [masks(pid) for pid in family] == [[ALL], [SECOND, SECOND], [ALL]]


def test_of_the_descendants_one_that_was_pinned_on_purpose_is_left_alone_whole() -> None:
    with program(FAMILY, str(max(SECOND))) as child:
        pinned = pin_threads(child.pid, FIRST, tree=True)
        family = [child.pid, *(stat.number for stat in descendants(child.pid))]
        assert [masks(pid) for pid in family] == [[FIRST], [FIRST], [SECOND, SECOND], [FIRST]]
    assert [thread.pid for thread in pinned.having(LEFT_ALONE)] == 2 * [family[2]]
    assert [thread.pid for thread in pinned.having(PINNED)] == [family[0], family[1], family[3]]
    assert pinned.complete


def test_by_force_all_descendants_are_pinned() -> None:
    with program(FAMILY, str(max(SECOND))) as child:
        assert len(pin_threads(child.pid, FIRST, tree=True, force=True).having(PINNED)) == 5
        family = [child.pid, *(stat.number for stat in descendants(child.pid))]
        assert [masks(pid) for pid in family] == [[FIRST], [FIRST], [FIRST, FIRST], [FIRST]]


def test_a_process_can_pin_itself() -> None:
    code = (
        "import os, sys, threading; from affinityd.linux.pinning import pin_threads;"
        "event = threading.Event(); thread = threading.Thread(target=event.wait); thread.start();"
        "pinned = pin_threads(os.getpid(), frozenset({int(sys.argv[1])})); event.set();"
        "print([(it.outcome, *it.held) for it in pinned.threads], pinned.complete)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(min(FIRST))], capture_output=True, text=True, check=True
    )
    assert said.stdout == f"{2 * [(PINNED, min(FIRST))]} True\n"


def test_more_than_there_is_is_cut_and_said_to_be() -> None:
    with sleeping() as child:
        pinned = pin_threads(child.pid, FIRST | {4000})
    assert outcomes(pinned) == [(PINNED, FIRST)]
    assert pinned.cut == pinned.threads
    assert not pinned.complete


def test_threads_that_start_with_the_mask_that_was_cut_are_pinned_and_not_on_purpose() -> None:
    with program(CHURN) as child:
        pinned = pin_threads(child.pid, FIRST | {4000})
        assert {thread.outcome for thread in pinned.threads} == {PINNED}
        assert pinned.settled


@needs_cpuset
def test_what_a_cpuset_has_not_is_cut_or_refused() -> None:
    with cpuset() as folder, sleeping() as child:
        (folder / "cgroup.procs").write_text(str(child.pid))
        (folder / "cpuset.cpus").write_text(str(min(FIRST)))
        cut = pin_threads(child.pid, ALL)
        refused = pin_threads(child.pid, SECOND)
        assert masks(child.pid) == [FIRST]
    assert outcomes(cut) == [(PINNED, FIRST)]
    assert cut.cut == cut.threads
    assert outcomes(refused) == [(REFUSED, FIRST)]
    assert refused.threads[0].reason == "EINVAL: its cpuset has none of these CPUs"
    assert refused.settled
    assert not refused.complete


@needs_cpuset
def test_a_cpuset_that_shrinks_between_two_passes_shows_in_what_is_read_back() -> None:
    with cpuset() as folder, sleeping() as child:
        (folder / "cgroup.procs").write_text(str(child.pid))
        os.sched_setaffinity(child.pid, FIRST)
        passes = pinning._Passes(child.pid, ALL, None, force=False, dry_run=False)
        assert passes.pin_all()
        assert passes.outcomes[0].held == ALL
        (folder / "cpuset.cpus").write_text(str(min(SECOND)))
        assert not passes.pin_all()
        assert [(it.outcome, it.held) for it in passes.outcomes] == [(PINNED, SECOND)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_process_is_refused_and_stays_as_it_is() -> None:
    code = (
        "import os, sys; from affinityd.linux.pinning import pin_threads; os.setuid(65534);"
        "pinned = pin_threads(int(sys.argv[1]), frozenset({0}));"
        "print(*((it.outcome, it.reason) for it in pinned.threads), pinned.complete)"
    )
    with sleeping() as child:
        said = subprocess.run(
            [sys.executable, "-c", code, str(child.pid)], capture_output=True, text=True, check=True
        )
        assert masks(child.pid) == [ALL]
    reason = "EPERM: it is another user's; only root (CAP_SYS_NICE) may pin it"
    assert said.stdout == f"{(REFUSED, reason)} False\n"


@pytest.mark.parametrize("attempt", range(10))
def test_a_process_that_ends_meanwhile_is_gone_and_no_error(attempt: int) -> None:
    with program(CHURN) as child:
        kill = ["sh", "-c", f"sleep 0.00{attempt}; kill -9 {child.pid}"]
        with subprocess.Popen(kill):
            while (stat := stat_of(child.pid)) and not stat.is_zombie:
                pinned = pin_threads(child.pid, FIRST, tree=True)
                assert {thread.outcome for thread in pinned.threads} <= {PINNED}
        child.wait()
        assert pin_threads(child.pid, FIRST).threads == ()


@pytest.mark.parametrize("pid", [0, -1, 10**9, 10**12])
def test_what_is_no_process_is_gone(pid: int) -> None:
    """And 0, which the kernel takes for whoever asks, does not pin us."""
    pinned = pin_threads(pid, FIRST)
    assert pinned.threads == ()
    assert not pinned.complete
    assert os.sched_getaffinity(0) == ALL


def test_nothing_to_pin_to_is_refused() -> None:
    with sleeping() as child:
        assert pin_threads(child.pid, frozenset()).having(REFUSED)
        assert masks(child.pid) == [ALL]


def test_a_worker_of_the_kernel_is_left_alone_with_the_reason() -> None:
    """The kernel's own per-CPU thread stands for io_uring's, which such kernels had."""
    found = [stat.number for stat in everyone() if stat.name == "ksoftirqd/0"]
    if not found:
        pytest.skip("no kernel threads in this pid namespace")
    pinned = pin_threads(found[0], ALL)
    assert [(it.outcome, it.held) for it in pinned.threads] == [(LEFT_ALONE, frozenset({0}))]
    assert pinned.threads[0].reason == "a worker of the kernel, which sets its mask"


def test_another_process_that_has_the_number_by_now_is_left_alone() -> None:
    with sleeping() as child:
        stat = stat_of(child.pid)
        assert stat is not None
        before = os.sched_getaffinity(child.pid)
        assert pin_threads(child.pid, FIRST, start=stat.start - 1).threads == ()
        assert os.sched_getaffinity(child.pid) == before
        assert pin_threads(child.pid, FIRST, start=stat.start).complete
