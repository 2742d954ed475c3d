"""Facts about processes that use GPUs, from the real /proc, and from copies that a test changes."""

import os
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from affinityd.audit import gather
from affinityd.audit.gather import ProcessWalk
from affinityd.audit.model import GpuHolders, Holding, Job, ProcessFacts
from affinityd.linux.processes import ProcessTable
from affinityd.linux.scheduling import TICKS
from affinityd.topology.model import GpuKey
from tests.support.audit_facts import GPU
from tests.support.children import children_of, copied, present, program, sleeping
from tests.support.daemons import eventually
from tests.support.machines.sysfs_tree import put

OTHER = ("nvidia", 1)
ABSENT = 10**7  #: above any kernel's pid_max

#: Starts threads. The first of these starts children, and each child has a child.
FAMILY = """
import os, sys, threading
born, end = threading.Semaphore(0), threading.Event()
def work(children):
    for _ in range(children):
        if os.fork() == 0:
            os.fork()
            os.read(0, 1)
            os._exit(0)
    born.release()
    end.wait()
threads, children = map(int, sys.argv[1:])
for number in range(1, threads):
    threading.Thread(target=work, args=(children * (number == 1),), daemon=True).start()
    born.acquire()
print('ready', flush=True)
os.read(0, 1)
"""


def walk(*pids: int | Holding, asked: float = float("inf"), proc: str = "/proc") -> ProcessWalk:
    holdings = tuple(it if isinstance(it, Holding) else Holding(it, GPU) for it in pids)
    held = GpuHolders(holdings, asked=asked)
    return ProcessWalk(held, time.monotonic() + 60.0, ProcessTable(proc))


def gathered(*pids: int | Holding, proc: str = "/proc") -> list[ProcessFacts]:
    return list(walk(*pids, proc=proc))


def family(holding: Holding, size: int) -> list[ProcessFacts]:
    eventually(lambda: len(gathered(holding)) == size, "all of them are there")
    return gathered(holding)


def pids(found: list[ProcessFacts]) -> list[int]:
    return [facts.pid for facts in found]


def test_the_facts_of_a_process_equal_the_kernel_s() -> None:
    with sleeping() as child:
        cpu = min(os.sched_getaffinity(0))
        os.sched_setaffinity(child.pid, {cpu})
        (facts,) = gathered(child.pid)
        stat = present(child.pid)
    assert (facts.pid, facts.name, facts.start) == (child.pid, stat.name, stat.start)
    assert (facts.uid, facts.parent, facts.session) == (os.getuid(), os.getpid(), os.getsid(0))
    assert facts.state in {"S", "R"}  # it may have just woken up
    assert (facts.gpu, facts.holding) == (GPU, Holding(child.pid, GPU))
    (thread,) = facts.threads
    assert (thread.tid, thread.start, thread.mask) == (child.pid, stat.start, frozenset({cpu}))
    assert (thread.last_cpu, thread.cpu_ticks) == (stat.last_cpu, stat.cpu_ticks)


def test_descendants_come_after_their_holder_and_have_all_gpus_of_the_holder() -> None:
    with program(FAMILY, "3", "2") as child, sleeping() as other:
        found = family(Holding(child.pid, OTHER, beside=(GPU,)), 5)
        first, second = children_of(child.pid)
        more = gathered(child.pid, other.pid)
    assert [len(facts.threads) for facts in found] == [3, 1, 1, 1, 1]
    assert [facts.parent for facts in found[1:]] == [child.pid, first, child.pid, second]
    assert [facts.holder for facts in found] == [None, *[child.pid] * 4]
    assert [facts.holding is None for facts in found] == [False, *[True] * 4]
    assert {facts.gpus for facts in found} == {(OTHER, GPU)}
    # There are thousands of threads and few masks: equal masks are one object.
    assert len({id(thread.mask) for facts in more for thread in facts.threads}) == 1
    assert len({id(facts.cgroups) for facts in more}) == 1


def test_a_descendant_that_holds_a_gpu_keeps_it_for_itself_and_its_children() -> None:
    with program(FAMILY, "2", "1") as child:
        _, middle, last = pids(family(Holding(child.pid, GPU), 3))
        named = Holding(child.pid, GPU), Holding(middle, OTHER)
        for order in (named, named[::-1]):
            found = {it.pid: (it.gpu, it.holding, it.holder) for it in gathered(*order)}
            assert found == {
                child.pid: (GPU, named[0], None),
                middle: (OTHER, named[1], None),
                last: (OTHER, None, middle),
            }


def test_ended_processes_are_unseen_and_processes_that_reuse_a_pid_are_no_holders() -> None:
    gone = walk(ABSENT)
    assert (list(gone), gone.unseen) == ([], [Holding(ABSENT, GPU)])
    assert os.getpid() not in pids(gathered(os.getppid()))  # a scan leaves itself out
    with sleeping() as child:
        stat = present(child.pid)
        for seconds, found in ((-1, []), (1, [child.pid])):
            asked = walk(child.pid, asked=stat.start / TICKS + seconds)
            assert (pids(list(asked)), asked.unseen) == (found, [])


@pytest.mark.parametrize(("step", "seen", "late"), [(0.001, [1], {GPU: 1}), (1.0, [], {GPU: 2})])
def test_a_slow_family_delays_no_other_process_unless_the_scan_s_time_is_up(
    monkeypatch: pytest.MonkeyPatch, step: float, seen: list[int], late: dict[GpuKey, int]
) -> None:
    clock = SimpleNamespace(monotonic=count(0.0, step).__next__)
    with program(FAMILY, "100", "0") as large, sleeping() as small:
        monkeypatch.setattr(gather, "time", clock)
        held = GpuHolders((Holding(large.pid, GPU), Holding(small.pid, GPU)))
        looking = ProcessWalk(held, 1.0, ProcessTable(), family=0.05)
        assert pids(list(looking)) == [small.pid for _ in seen]
    assert (looking.late, looking.unseen) == (late, [])


JOB = "/slurm/uid_0/job_7"


@pytest.mark.parametrize("cpuset", [JOB, ""], ids=["confined", "only masks"])
def test_whether_slurm_confines_a_job_is_read_from_its_cpuset(tmp_path: Path, cpuset: str) -> None:
    with sleeping() as task:
        proc = copied(tmp_path / "proc", task.pid)
        mounts = "34 31 0:31 / /cpuset rw - cgroup cgroup rw,cpuset"
        put(proc / "self/mountinfo", mounts)
        put(proc / f"{task.pid}/cgroup", f"5:freezer:{JOB}\n3:cpuset:{cpuset or '/'}")
        put(tmp_path / f"cpuset{cpuset}/cpuset.cpus", "0-7")  # all CPUs of the machine
        (facts,) = gathered(task.pid, proc=str(proc))
    assert (facts.membership.job, facts.cpuset) == (Job("slurm", "7"), frozenset(range(8)))
    assert facts.is_confined is bool(cpuset)


def test_a_process_whose_pid_was_just_reused_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with sleeping() as child:
        stat = present(child.pid)
        answers = iter([stat, replace(stat, start=stat.start + 1)])
        monkeypatch.setattr(gather, "stat_of", lambda *_: next(answers))
        assert gathered(child.pid) == []
