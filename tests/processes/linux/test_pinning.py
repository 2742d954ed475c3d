"""Every thread of a real process is pinned, and the report equals the kernel's masks."""

import os
import subprocess
import time
from dataclasses import replace

import pytest

from affinityd.cli.commands.pin import pin_targets
from affinityd.cpuset import CpuSet
from affinityd.linux import pinning
from affinityd.linux.cgroup import mask_of
from affinityd.linux.pinning import LEFT_ALONE, PINNED, PinResult, Target, pin_threads
from affinityd.linux.processes import descendants, thread_ids
from tests.support.child_python import said
from tests.support.children import CHURN, HEADLESS, present, program, sleeping
from tests.support.daemons import eventually

ALL = frozenset(os.sched_getaffinity(0))
FIRST, SECOND = (frozenset({cpu}) for cpu in sorted(ALL)[:2])
BOTH = FIRST | SECOND

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

#: Forks a child, which takes milliseconds: 64 Ki small pages have to be copied.
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

#: A process of one thread pins itself to the CPU in argv, and prints how many passes that takes.
SELF = """
import os, sys
from affinityd.linux.pinning import Target, pin_threads
from affinityd.linux.processes import stat_of
target = Target(os.getpid(), stat_of(os.getpid()).start, frozenset({int(sys.argv[1])}))
passes = []
def targets():
    passes.append(target)
    return [target]
pin_threads(targets)
print(len(passes))
"""

#: Three threads, the second of which has pinned itself to the CPU in argv; a child that has a
#: child; and another child, of two threads, pinned to that CPU as well.
FAMILY = """
import os, sys, threading
says, hears = os.pipe()[::-1]
cpu = {int(sys.argv[1])}
def stay(cpus=None):
    if cpus:
        os.sched_setaffinity(0, cpus)
    os.write(says, b'x')
    sys.stdin.read()
    os._exit(0)
if os.fork() == 0:
    os.fork()
    stay()
if os.fork() == 0:
    os.sched_setaffinity(0, cpu)
    threading.Thread(target=stay).start()
    stay()
for cpus in (cpu, None):
    threading.Thread(target=stay, args=(cpus,)).start()
for _ in range(6):
    os.read(hears, 1)
print('ready', flush=True)
stay()
"""


def pin(pid: int, cpus: CpuSet, *, tree: bool = False, force: bool = False) -> PinResult:
    """Pin a process as `affinityd pin` does, without a plan for its descendants."""
    process = present(pid)
    return pin_threads(pin_targets(process, cpus, (lambda _: None) if tree else None, force=force))


def masks(pid: int) -> list[CpuSet | None]:
    return [mask_of(tid) for tid in thread_ids(pid)]


def outcomes(pinned: PinResult) -> list[tuple[str, CpuSet]]:
    return [(thread.outcome, thread.held) for thread in pinned.threads]


def go(child: subprocess.Popen[str], seconds: float) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()
    time.sleep(seconds)


@pytest.mark.parametrize("milliseconds", [0, 5])
def test_200_threads_that_start_each_other_are_all_pinned(milliseconds: int) -> None:
    with program(CHAIN) as child:
        go(child, milliseconds / 1000)
        pinned = pin(child.pid, FIRST)
        eventually(lambda: len(thread_ids(child.pid)) == 200, "all run")
        assert set(masks(child.pid)) == {FIRST}
    assert pinned.is_complete
    assert set(outcomes(pinned)) == {(PINNED, FIRST)}


@pytest.mark.parametrize("milliseconds", [0.5, 1.5])
def test_a_child_that_is_being_forked_is_pinned(milliseconds: float) -> None:
    with program(SLOW_FORK) as child:
        go(child, milliseconds / 1000)
        pinned = pin(child.pid, FIRST, tree=True)
        eventually(lambda: descendants(child.pid), "it is forked")
        (forked,) = descendants(child.pid)
        assert mask_of(forked.number) == FIRST
    assert [thread.pid for thread in pinned.threads] == [child.pid, forked.number]


def test_a_process_that_pins_itself_does_not_wait_for_its_own_thread() -> None:
    assert said(SELF, str(min(FIRST))) == str(1 + pinning.QUIET_PASSES)


def test_a_pin_ends_although_threads_come_and_go() -> None:
    with program(CHURN) as child:
        assert pin(child.pid, FIRST).is_complete
        for _ in range(20):
            assert {mask for mask in masks(child.pid) if mask is not None} == {FIRST}


@pytest.mark.parametrize(
    ("flags", "expected", "left"),
    [
        ([], "FSF A SS A", [0]),
        (["tree"], "FSF F SS F", [0, 2, 2]),
        (["tree", "force"], "FFF F FF F", []),
    ],
)
def test_threads_and_processes_pinned_on_purpose_are_left_alone(
    flags: list[str], expected: str, left: list[int]
) -> None:
    with program(FAMILY, str(max(SECOND))) as child:
        pinned = pin(child.pid, FIRST, **dict.fromkeys(flags, True))
        family = [child.pid, *(stat.number for stat in descendants(child.pid))]
        names = {ALL: "A", FIRST: "F", SECOND: "S"}
        found = ("".join(names[mask or ALL] for mask in masks(pid)) for pid in family)
        assert " ".join(found) == expected
    assert pinned.is_complete
    assert [family.index(it.pid) for it in pinned.having(LEFT_ALONE)] == left
    assert {it.held for it in pinned.having(PINNED)} == {FIRST}


def test_a_thread_whose_mask_the_cpuset_cut_counts_as_pinned() -> None:
    with program(FAMILY, str(max(FIRST))) as child:
        pinned = pin(child.pid, FIRST | {4000})
    assert outcomes(pinned) == [(PINNED, FIRST)] * 3
    assert pinned.cut == pinned.threads
    assert (pinned.is_settled, pinned.is_complete) == (True, False)


def test_a_process_that_reuses_the_pid_is_not_pinned() -> None:
    with sleeping() as child, sleeping() as other:
        now = Target(child.pid, present(child.pid).start, FIRST)
        assert pin_threads(lambda: [replace(now, start=now.start - 1)]).threads == ()
        passes = pinning._Passes(dry_run=False)
        passes._set_mask(pinning.ThreadResult(child.pid, other.pid, PINNED, FIRST, ALL))
        assert masks(child.pid) == masks(other.pid) == [ALL]
        assert pin_threads(lambda: [now]).is_complete


def test_threads_are_pinned_although_the_main_thread_has_ended() -> None:
    with program(HEADLESS) as child:
        assert outcomes(pin(child.pid, FIRST)) == [(PINNED, FIRST)]
        assert masks(child.pid) == [ALL, FIRST]


@pytest.mark.parametrize(
    ("before", "asked", "changed", "expected"),
    [
        (FIRST, BOTH, None, (PINNED, BOTH)),  # fewer CPUs than asked for are no pin
        (FIRST, BOTH, SECOND, (PINNED, SECOND)),  # the cpuset shrank after the pin
        (BOTH, FIRST, SECOND, (LEFT_ALONE, SECOND)),  # the thread has pinned itself since
    ],
)
def test_a_thread_is_judged_by_its_mask_after_a_pass(
    before: CpuSet, asked: CpuSet, changed: CpuSet | None, expected: tuple[str, CpuSet]
) -> None:
    with sleeping() as child:
        os.sched_setaffinity(child.pid, before)
        passes = pinning._Passes(dry_run=False)
        target = Target(child.pid, present(child.pid).start, asked)
        passes.pin_all([target])
        if changed is not None:
            os.sched_setaffinity(child.pid, changed)
            passes.pin_all([target])
        assert outcomes(PinResult(tuple(passes.results), is_settled=True)) == [expected]
