"""Every thread of a real process is pinned, and what is reported is what the kernel holds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from affinityd.cli.pin_targets import PinTargets
from affinityd.cpuset import CpuSet
from affinityd.linux import pinning
from affinityd.linux.pinning import (
    COMPUTED,
    LEFT_ALONE,
    PINNED,
    QUIET_PASSES,
    REFUSED,
    PinResult,
    Target,
    ThreadResult,
    pin_threads,
)
from affinityd.linux.process_table import descendants
from affinityd.linux.processes import everyone, mask_of, stat_of, thread_ids, thread_stat
from tests.processes.linux.test_processes import HEADLESS, ZOMBIE
from tests.support.children import CHURN, children_of, program, sleeping
from tests.support.cpusets import cpuset, needs_cpuset
from tests.support.daemons import PATIENCE
from tests.support.paths import REPOSITORY

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


def pin(
    pid: int,
    cpus: CpuSet,
    *,
    tree: bool = False,
    force: bool = False,
    dry_run: bool = False,
) -> PinResult:
    """Pin a process as `affinityd pin` does, without a plan for its descendants."""
    process = stat_of(pid)
    assert process is not None
    own_cpus = (lambda _child: None) if tree else None
    return pin_threads(PinTargets(process, cpus, own_cpus, force=force), dry_run=dry_run)


def target_of(pid: int, cpus: CpuSet) -> Target:
    stat = stat_of(pid)
    assert stat is not None
    return Target(pid, stat.start, cpus)


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
        pinned = pin(child.pid, FIRST)
        while len(thread_ids(child.pid)) < 200:
            time.sleep(0.001)
        assert set(masks(child.pid)) == {FIRST}
    assert pinned.is_complete
    assert set(outcomes(pinned)) == {(PINNED, FIRST)}


@pytest.mark.parametrize("milliseconds", [0.5, 1, 1.5])
def test_a_child_that_is_just_being_forked_is_not_missed(milliseconds: float) -> None:
    """It has its parent's old mask already, and is in no list of processes yet."""
    with program(SLOW_FORK) as child:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
        time.sleep(milliseconds / 1000)
        pinned = pin(child.pid, FIRST, tree=True)
        while not (family := descendants(child.pid)):
            time.sleep(0.001)
        assert [mask_of(stat.number) for stat in family] == [FIRST]
    assert [thread.pid for thread in pinned.threads] == [child.pid, family[0].number]


def test_threads_that_never_sleep_are_not_waited_for_long() -> None:
    with program(BUSY) as child:
        start = time.monotonic()
        pinned = pin(child.pid, FIRST)
        took = time.monotonic() - start
    assert outcomes(pinned) == 3 * [(PINNED, FIRST)]
    assert pinned.is_complete
    assert took < PATIENCE


def test_a_thread_that_has_computed_since_it_was_pinned_is_not_waited_for() -> None:
    with program("print('ready', flush=True)\nwhile True: pass") as child:
        passes = pinning._Passes(None, dry_run=False)
        assert passes.pin_all([target_of(child.pid, FIRST)])
        before = user_time(child.pid)
        assert passes.may_show_more()
        while user_time(child.pid) < before + 2 * COMPUTED:
            time.sleep(0.001)
        assert not passes.may_show_more()


def user_time(tid: int) -> int:
    stat = thread_stat(tid, tid)
    assert stat is not None
    return stat.user_time


def test_threads_that_come_and_go_for_ever_do_not_keep_it_from_an_end() -> None:
    with program(CHURN) as child:
        pinned = pin(child.pid, FIRST)
        assert pinned.is_complete
        for _ in range(20):
            assert {mask for mask in masks(child.pid) if mask is not None} == {FIRST}


def test_given_up_before_the_last_passes_were_quiet_it_is_not_settled() -> None:
    with sleeping() as child:
        targets = [target_of(child.pid, FIRST)]
        first = pin_threads(lambda: targets, max_passes=QUIET_PASSES)
        second = pin_threads(lambda: targets, max_passes=QUIET_PASSES)
    assert outcomes(first) == [(PINNED, FIRST)]
    assert (first.is_settled, first.is_complete) == (False, False)
    assert (second.is_settled, second.is_complete) == (True, True)


def test_a_thread_that_pinned_itself_is_left_alone() -> None:
    with program(ON_PURPOSE, str(max(SECOND))) as child:
        pinned = pin(child.pid, FIRST)
        assert masks(child.pid) == [FIRST, SECOND, FIRST]
    assert outcomes(pinned) == [(PINNED, FIRST), (LEFT_ALONE, SECOND), (PINNED, FIRST)]
    assert pinned.is_complete


def test_a_thread_that_pinned_itself_is_pinned_by_force() -> None:
    with program(ON_PURPOSE, str(max(SECOND))) as child:
        pinned = pin(child.pid, FIRST, force=True)
        assert masks(child.pid) == [FIRST, FIRST, FIRST]
    assert outcomes(pinned) == 3 * [(PINNED, FIRST)]


def test_pinned_again_elsewhere_the_threads_follow_and_the_lone_one_still_does_not() -> None:
    with program(ON_PURPOSE, str(max(SECOND))) as child:
        pin(child.pid, FIRST)
        pin(child.pid, ALL)
        assert masks(child.pid) == [ALL, SECOND, ALL]


def test_a_rehearsal_says_what_would_come_of_it_and_sets_nothing() -> None:
    with program(ON_PURPOSE, str(max(SECOND))) as child:
        pinned = pin(child.pid, FIRST, dry_run=True)
        assert masks(child.pid) == [ALL, SECOND, ALL]
    assert outcomes(pinned) == [(PINNED, FIRST), (LEFT_ALONE, SECOND), (PINNED, FIRST)]
    assert pinned.is_settled


def test_descendants_are_pinned_with_the_tree_alone() -> None:
    with program(FAMILY, str(max(SECOND))) as child:
        pin(child.pid, FIRST)
        family = [stat.number for stat in descendants(child.pid)]
        assert [masks(pid) for pid in family] == [[ALL], [SECOND, SECOND], [ALL]]


def test_of_the_descendants_one_that_was_pinned_on_purpose_is_left_alone_whole() -> None:
    with program(FAMILY, str(max(SECOND))) as child:
        pinned = pin(child.pid, FIRST, tree=True)
        family = [child.pid, *(stat.number for stat in descendants(child.pid))]
        assert [masks(pid) for pid in family] == [[FIRST], [FIRST], [SECOND, SECOND], [FIRST]]
    assert [thread.pid for thread in pinned.having(LEFT_ALONE)] == 2 * [family[2]]
    assert [thread.pid for thread in pinned.having(PINNED)] == [family[0], family[1], family[3]]
    assert pinned.is_complete


def test_by_force_all_descendants_are_pinned() -> None:
    with program(FAMILY, str(max(SECOND))) as child:
        assert len(pin(child.pid, FIRST, tree=True, force=True).having(PINNED)) == 5
        family = [child.pid, *(stat.number for stat in descendants(child.pid))]
        assert [masks(pid) for pid in family] == [[FIRST], [FIRST], [FIRST, FIRST], [FIRST]]


def test_a_process_can_pin_itself() -> None:
    code = (
        "import os, sys, threading; from tests.processes.linux.test_pinning import pin;"
        "event = threading.Event(); thread = threading.Thread(target=event.wait); thread.start();"
        "pinned = pin(os.getpid(), frozenset({int(sys.argv[1])})); event.set();"
        "print([(it.outcome, *it.held) for it in pinned.threads], pinned.is_complete)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(min(FIRST))],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == f"{2 * [(PINNED, min(FIRST))]} True\n"


def test_more_than_there_is_is_cut_and_said_to_be() -> None:
    with sleeping() as child:
        pinned = pin(child.pid, FIRST | {4000})
    assert outcomes(pinned) == [(PINNED, FIRST)]
    assert pinned.cut == pinned.threads
    assert not pinned.is_complete


def test_threads_that_start_with_the_mask_that_was_cut_are_pinned_and_not_on_purpose() -> None:
    with program(CHURN) as child:
        pinned = pin(child.pid, FIRST | {4000})
        assert {thread.outcome for thread in pinned.threads} == {PINNED}
        assert pinned.is_settled


@needs_cpuset
def test_what_a_cpuset_has_not_is_cut_or_refused() -> None:
    with cpuset() as folder, sleeping() as child:
        (folder / "cgroup.procs").write_text(str(child.pid))
        (folder / "cpuset.cpus").write_text(str(min(FIRST)))
        cut = pin(child.pid, ALL)
        refused = pin(child.pid, SECOND)
        assert masks(child.pid) == [FIRST]
    assert outcomes(cut) == [(PINNED, FIRST)]
    assert cut.cut == cut.threads
    assert outcomes(refused) == [(REFUSED, FIRST)]
    assert refused.threads[0].reason == "EINVAL: its cpuset has none of these CPUs"
    assert refused.is_settled
    assert not refused.is_complete


@needs_cpuset
def test_a_cpuset_that_shrinks_between_two_passes_shows_in_what_is_read_back() -> None:
    with cpuset() as folder, sleeping() as child:
        (folder / "cgroup.procs").write_text(str(child.pid))
        os.sched_setaffinity(child.pid, FIRST)
        passes = pinning._Passes(None, dry_run=False)
        assert passes.pin_all([target_of(child.pid, ALL)])
        assert passes.results[0].held == ALL
        (folder / "cpuset.cpus").write_text(str(min(SECOND)))
        assert not passes.pin_all([target_of(child.pid, ALL)])
        assert [(it.outcome, it.held) for it in passes.results] == [(PINNED, SECOND)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_process_is_refused_and_stays_as_it_is() -> None:
    code = (
        "import os, sys; from tests.processes.linux.test_pinning import pin; os.setuid(65534);"
        "pinned = pin(int(sys.argv[1]), frozenset({0}));"
        "print(*((it.outcome, it.reason) for it in pinned.threads), pinned.is_complete)"
    )
    with sleeping() as child:
        said = subprocess.run(
            [sys.executable, "-c", code, str(child.pid)],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
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
                pinned = pin(child.pid, FIRST, tree=True)
                assert {thread.outcome for thread in pinned.threads} <= {PINNED}
        child.wait()
        gone = Target(child.pid, 0, FIRST)
        assert pin_threads(lambda: [gone]) == PinResult((), is_settled=True)


def test_nothing_to_pin_to_is_refused() -> None:
    with sleeping() as child:
        assert pin(child.pid, frozenset()).having(REFUSED)
        assert masks(child.pid) == [ALL]


def test_a_worker_of_the_kernel_is_left_alone_with_the_reason() -> None:
    """The kernel's own per-CPU thread stands for io_uring's, which such kernels had."""
    found = [stat.number for stat in everyone() if stat.name == "ksoftirqd/0"]
    if not found:
        pytest.skip("no kernel threads in this pid namespace")
    pinned = pin(found[0], ALL)
    assert [(it.outcome, it.held) for it in pinned.threads] == [(LEFT_ALONE, frozenset({0}))]
    assert pinned.threads[0].reason == "a worker of the kernel, which sets its mask"


def test_another_process_that_has_the_number_by_now_is_left_alone() -> None:
    with sleeping() as child:
        now = target_of(child.pid, FIRST)
        before = replace(now, start=now.start - 1)
        assert pin_threads(lambda: [before]).threads == ()
        assert os.sched_getaffinity(child.pid) == ALL
        assert pin_threads(lambda: [now]).is_complete


def test_a_thread_of_another_process_that_has_the_number_by_now_is_not_touched() -> None:
    with sleeping() as child, sleeping() as other:
        passes = pinning._Passes(None, dry_run=False)
        assert passes._set_mask(ThreadResult(child.pid, other.pid, PINNED, FIRST, ALL)) is None
        assert mask_of(other.pid) == ALL


def test_a_thread_that_ends_meanwhile_is_in_no_result() -> None:
    with sleeping() as child:
        passes = pinning._Passes(None, dry_run=False)
        target = target_of(child.pid, FIRST)
        assert passes.pin_all([target])
        child.kill()
        child.wait()
        assert not passes.pin_all([target])
        assert passes.results == []


def test_a_main_thread_that_has_ended_is_passed_over_and_the_others_are_pinned() -> None:
    with program(HEADLESS) as child:
        assert outcomes(pin(child.pid, FIRST)) == [(PINNED, FIRST)]
        assert masks(child.pid) == [ALL, FIRST]


def test_a_zombie_is_gone() -> None:
    with program(ZOMBIE) as child:
        (zombie,) = children_of(child.pid)
        assert pin(zombie, FIRST).threads == ()


def test_when_the_time_is_up_nothing_more_is_set() -> None:
    with sleeping() as child:
        target = target_of(child.pid, FIRST)
        result = pin_threads(lambda: [target], deadline=time.monotonic())
        assert result == PinResult((), is_settled=False, is_late=True)
        assert masks(child.pid) == [ALL]


def test_what_was_set_before_the_time_was_up_is_told() -> None:
    with sleeping() as child:
        moments = iter([0.0, 0.0, 2.0])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("affinityd.linux.pinning.time.monotonic", lambda: next(moments))
            stat = stat_of(child.pid)
            assert stat is not None
            calls = [[Target(child.pid, stat.start, FIRST)]] * 3
            result = pin_threads(iter(calls).__next__, deadline=1.0)
        assert result.is_late
        assert [(it.tid, it.was_set, it.held) for it in result.threads] == [
            (child.pid, True, FIRST)
        ]
        assert mask_of(child.pid) == FIRST
