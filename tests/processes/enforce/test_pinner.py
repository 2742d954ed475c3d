"""The masks of real processes are set, and what comes of it is what the kernel holds."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.audit.gather import TICKS, ProcessWalk
from affinityd.audit.model import GpuHolders, Holding, ProcessFacts
from affinityd.cpuset import CpuSet
from affinityd.enforce import pinner
from affinityd.enforce.model import PinOutcome, TargetCpus
from affinityd.linux.pinning import QUIET_PASSES
from affinityd.linux.process_table import ProcessTable
from affinityd.linux.processes import mask_of, thread_ids
from tests.processes.linux.test_pinning import CHAIN, ON_PURPOSE
from tests.support.audit_facts import GPU
from tests.support.children import CHURN, children_of, program, sleeping
from tests.support.cpusets import cpuset, needs_cpuset

ALL = frozenset(os.sched_getaffinity(0))
FIRST, SECOND = (frozenset({cpu}) for cpu in sorted(ALL)[:2])
NOT_HERE = frozenset({1023})  #: of no machine that runs this
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")

TO_FIRST = TargetCpus(cpus=FIRST, cpuset=ALL, usual=frozenset({ALL}))

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes root")

#: As many children as argv says, of three threads each, which end with it.
FAMILY = """
import ctypes, os, sys, threading
libc, says = ctypes.CDLL(None), os.pipe()
threading.stack_size(65536)
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        libc.prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
        for _ in range(2):
            threading.Thread(target=libc.pause, daemon=True).start()
        os.write(says[1], b'x')
        libc.pause()
for _ in range(int(sys.argv[1])):
    os.read(says[0], 1)
print('ready', flush=True)
sys.stdin.read()
"""


def facts_of(pid: int) -> ProcessFacts:
    """Return what a scan finds of a process."""
    found = ProcessWalk(GpuHolders((Holding(pid, GPU),)), time.monotonic() + 10, ProcessTable())
    return next(iter(found))


def pin(facts: ProcessFacts, target: TargetCpus = TO_FIRST, seconds: float = 10) -> PinOutcome:
    return pinner.pin_process(facts, target, time.monotonic() + seconds)


def masks(pid: int) -> list[CpuSet | None]:
    return [mask_of(tid) for tid in thread_ids(pid)]


@contextmanager
def number_of_another_process() -> Iterator[tuple[int, ProcessFacts]]:
    """Yield a process's number, and the facts of another one that had it a moment ago."""
    for _ in range(20):
        with sleeping() as first:
            facts = facts_of(first.pid)
        time.sleep(2 / TICKS)  # no number comes round within a tick of the kernel's clock
        for _ in range(5):
            try:
                LAST_PID.write_text(str(first.pid - 1))
            except OSError:
                pytest.skip("to choose a pid takes CAP_CHECKPOINT_RESTORE here")
            with sleeping() as second:
                if second.pid == first.pid:
                    yield first.pid, facts
                    return
    pytest.fail("no process could be had with another one's number")


def test_threads_that_drifted_are_pinned_and_a_second_time_nothing_is_left_to_do() -> None:
    with program(ON_PURPOSE, "") as child:
        facts = facts_of(child.pid)
        assert pin(facts) == PinOutcome(pinned=3)
        assert masks(child.pid) == [FIRST] * 3
        assert pin(facts) == PinOutcome()


def test_a_thread_that_somebody_pinned_on_purpose_stays() -> None:
    with program(ON_PURPOSE, str(max(SECOND))) as child:
        assert pin(facts_of(child.pid)) == PinOutcome(pinned=2)
        assert masks(child.pid) == [FIRST, SECOND, FIRST]


@pytest.mark.parametrize("milliseconds", [0, 5])
def test_of_200_threads_that_start_each_other_meanwhile_none_is_missed_by_the_next_scan(
    milliseconds: int,
) -> None:
    with program(CHAIN) as child:
        facts = facts_of(child.pid)
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
        time.sleep(milliseconds / 1000)
        pin(facts)
        while len(thread_ids(child.pid)) < 200:
            time.sleep(0.001)
        assert pin(facts).is_settled
        assert set(masks(child.pid)) == {FIRST}


@pytest.mark.parametrize("milliseconds", [0, 5])
def test_a_process_that_ends_meanwhile_is_gone_and_no_error(milliseconds: int) -> None:
    with program(CHURN) as child:
        facts = facts_of(child.pid)
        kill = ["sh", "-c", f"sleep 0.00{milliseconds}; kill -9 {child.pid}"]
        with subprocess.Popen(kill):
            end = time.monotonic() + 10
            while not (outcome := pin(facts)).is_gone and time.monotonic() < end:
                assert (outcome.refused, outcome.error) == (0, None)
                os.sched_setaffinity(child.pid, ALL)
        child.wait()
        assert pin(facts) == PinOutcome(is_gone=True)


def test_another_process_that_has_the_number_by_now_is_left_alone() -> None:
    with number_of_another_process() as (pid, facts):
        assert facts_of(pid).start != facts.start
        assert pin(facts) == PinOutcome(is_gone=True)
        assert masks(pid) == [ALL]


def test_what_the_kernel_cuts_down_is_told_as_it_holds() -> None:
    target = replace(TO_FIRST, cpus=FIRST | NOT_HERE)
    with sleeping() as child:
        assert pin(facts_of(child.pid), target) == PinOutcome(pinned=1, cut=FIRST)


@needs_cpuset
def test_a_cpuset_that_was_rewritten_since_the_scan_refuses_and_says_so() -> None:
    with cpuset() as folder, sleeping() as child:
        (folder / "cgroup.procs").write_text(str(child.pid))
        facts = facts_of(child.pid)
        (folder / "cpuset.cpus").write_text(str(min(SECOND)))
        error = "EINVAL: its cpuset has none of these CPUs"
        usual = replace(TO_FIRST, usual=frozenset({SECOND}))
        assert pin(facts, usual) == PinOutcome(refused=1, error=error)
        assert masks(child.pid) == [SECOND]


@needs_root
@pytest.mark.skipif(not shutil.which("chrt"), reason="no chrt")
def test_a_thread_that_runs_by_deadlines_is_refused_with_the_reason() -> None:
    times = ("--sched-runtime=1000000", "--sched-deadline=100000000", "--sched-period=100000000")
    with sleeping() as child:
        by_deadline = ["chrt", "--deadline", *times, "--pid", "0", str(child.pid)]
        if subprocess.run(by_deadline, check=False).returncode != 0:
            pytest.skip("no SCHED_DEADLINE here")
        outcome = pin(facts_of(child.pid))
    assert (outcome.pinned, outcome.refused) == (0, 1)
    assert outcome.error == (
        "EBUSY: it runs by deadlines (SCHED_DEADLINE), which takes every CPU of its cpuset"
    )


def test_when_time_is_up_nothing_more_is_set_and_it_says_so() -> None:
    with sleeping() as child:
        assert pin(facts_of(child.pid), seconds=0) == PinOutcome(is_settled=False, is_late=True)
        assert masks(child.pid) == [ALL]


def test_where_the_last_pass_still_set_something_it_is_not_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pinner, "MAX_PASSES", QUIET_PASSES)
    with sleeping() as child:
        facts = facts_of(child.pid)
        assert pin(facts) == PinOutcome(pinned=1, is_settled=False)
        assert pin(facts) == PinOutcome()


def test_500_processes_are_pinned() -> None:
    with program(FAMILY, "500") as child:
        family = [facts_of(pid) for pid in children_of(child.pid)]
        outcomes = [pin(facts) for facts in family]
        assert outcomes == [PinOutcome(pinned=3)] * 500
        assert {mask for facts in family for mask in masks(facts.pid)} == {FIRST}
