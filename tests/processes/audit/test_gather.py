"""What /proc tells of the processes that use GPUs: real ones, and what no kernel would write."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from affinityd.audit import gather
from affinityd.audit.gather import TICKS, ProcessWalk
from affinityd.audit.model import GpuHolders, Holding, Job, ProcessFacts
from affinityd.linux import processes
from affinityd.linux.process_table import ProcessTable
from affinityd.linux.processes import stat_of, thread_ids
from tests.support.audit_facts import GPU
from tests.support.children import CHURN, HEADLESS, children_of, program, sleeping
from tests.support.cpusets import HIERARCHY, cpuset, needs_cpuset
from tests.support.paths import REPOSITORY

LATER = 60.0
FREEZER = HIERARCHY.with_name("freezer")
OTHER = ("nvidia", 1)

#: As many threads, and as many children; each child has one of its own.
FAMILY = """
import os, sys, threading
end = threading.Event()
for _ in range(int(sys.argv[1]) - 1):
    threading.Thread(target=end.wait, daemon=True).start()
for _ in range(int(sys.argv[2])):
    if os.fork() == 0:
        os.fork()
        os.read(0, 1)
        os._exit(0)
print('ready', flush=True)
os.read(0, 1)
"""

#: Its second thread has a child.
OF_A_THREAD = """
import os, threading
def work():
    if os.fork() == 0:
        os.read(0, 1)
        os._exit(0)
    print('ready', flush=True)
    os.read(0, 1)
threading.Thread(target=work).start()
"""

ZOMBIE_CHILD = """
import os
pid = os.fork() or os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
print(pid, flush=True)
os.read(0, 1)
"""


def held(*pids: int, asked: float = float("inf")) -> GpuHolders:
    return GpuHolders(tuple(Holding(pid, GPU) for pid in pids), asked=asked)


def gathered(*pids: int, proc: str = "/proc") -> list[ProcessFacts]:
    return list(ProcessWalk(held(*pids), time.monotonic() + LATER, ProcessTable(proc)))


def test_a_process_is_told_by_what_the_kernel_has_of_it() -> None:
    with sleeping() as child:
        cpu = min(os.sched_getaffinity(0))
        os.sched_setaffinity(child.pid, {cpu})
        (facts,) = gathered(child.pid)
        stat = stat_of(child.pid)
    assert stat is not None
    assert (facts.pid, facts.name, facts.start) == (child.pid, stat.name, stat.start)
    assert (facts.uid, facts.parent, facts.state) == (os.getuid(), os.getpid(), facts.state)
    assert facts.state in {"S", "R"}  # it may just have become ready
    assert (facts.gpu, facts.holding) == (GPU, Holding(child.pid, GPU))
    assert facts.session == os.getsid(0)
    (thread,) = facts.threads
    assert (thread.tid, thread.start, thread.mask) == (child.pid, stat.start, frozenset({cpu}))
    assert (thread.last_cpu, thread.cpu_ticks) == (stat.last_cpu, stat.cpu_ticks)


def test_the_ticks_of_a_thread_are_its_time_on_a_cpu() -> None:
    code = "import time\nwhile time.process_time() < 0.2: pass\nprint('', flush=True)\ninput()"
    with program(code) as child:
        (facts,) = gathered(child.pid)
    assert 0.15 * TICKS < facts.threads[0].cpu_ticks < 5 * TICKS


def test_descendants_come_with_their_holder_parents_first() -> None:
    with program(FAMILY, "3", "2") as child:
        deadline = time.monotonic() + LATER
        while len(found := gathered(child.pid)) < 5:
            assert time.monotonic() < deadline
        first, second = children_of(child.pid)
    assert [len(facts.threads) for facts in found] == [3, 1, 1, 1, 1]
    assert [facts.holding is not None for facts in found] == [True, False, False, False, False]
    assert [facts.parent for facts in found[1:]] == [child.pid, first, child.pid, second]
    assert [facts.holder for facts in found] == [None, *[child.pid] * 4]


def test_threads_of_one_mask_share_one_object() -> None:
    with program(FAMILY, "3", "0") as child, sleeping() as other:
        found = gathered(child.pid, other.pid)
    masks = [thread.mask for process in found for thread in process.threads]
    assert (len(masks), len(set(map(id, masks)))) == (4, 1)


def test_what_another_thread_than_the_main_one_has_started_is_a_descendant() -> None:
    with program(OF_A_THREAD) as child:
        assert [facts.parent for facts in gathered(child.pid)] == [os.getpid(), child.pid]


def test_a_descendant_that_holds_a_gpu_keeps_it_and_those_below_it_have_it() -> None:
    with program(FAMILY, "1", "1") as child:
        deadline = time.monotonic() + LATER
        while len(family := gathered(child.pid)) < 3:
            assert time.monotonic() < deadline
        _, middle, last = (facts.pid for facts in family)
        for order in ((child.pid, middle), (middle, child.pid)):
            gpus = {child.pid: GPU, middle: OTHER}
            named = GpuHolders(tuple(Holding(pid, gpus[pid]) for pid in order))
            found = {
                it.pid: it for it in ProcessWalk(named, time.monotonic() + LATER, ProcessTable())
            }
            assert {pid: it.gpu for pid, it in found.items()} == {
                child.pid: GPU,
                middle: OTHER,
                last: OTHER,
            }
            assert found[middle].holding == Holding(middle, OTHER)
            assert found[last].holding is None
            assert [it.holder for it in found.values() if it.pid == last] == [middle]


def test_who_works_for_a_holder_of_several_gpus_works_for_all_of_them() -> None:
    with program(FAMILY, "1", "1") as child:
        named = GpuHolders((Holding(child.pid, OTHER, beside=(GPU,)),))
        deadline = time.monotonic() + LATER
        while len(found := list(ProcessWalk(named, time.monotonic() + LATER, ProcessTable()))) < 3:
            assert time.monotonic() < deadline
    assert {facts.gpus for facts in found} == {(OTHER, GPU)}
    assert [facts.holding is not None for facts in found] == [True, False, False]


def test_processes_in_the_same_cgroups_share_the_text_that_names_them() -> None:
    with program(FAMILY, "1", "2") as child, sleeping() as other:
        found = gathered(child.pid, other.pid)
        cgroups = Path(f"/proc/{child.pid}/cgroup").read_text()
    assert {facts.cgroups for facts in found} == {cgroups}
    assert len({id(facts.cgroups) for facts in found}) == 1


def test_a_zombie_is_told_where_it_holds_a_gpu_and_is_no_descendant() -> None:
    with program(ZOMBIE_CHILD.replace("print(pid", "print('ready'")) as child:
        (zombie,) = (pid for pid in _children(child.pid))
        assert [facts.pid for facts in gathered(child.pid)] == [child.pid]
        (facts,) = gathered(zombie)
    assert (facts.state, facts.parent, len(facts.threads)) == ("Z", child.pid, 1)


def _children(pid: int) -> Iterator[int]:
    yield from map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def test_who_asks_is_nobodys_descendant() -> None:
    assert os.getpid() not in {facts.pid for facts in gathered(os.getppid())}


def test_a_holder_that_is_gone_is_named_as_unseen() -> None:
    walk = ProcessWalk(held(10**7), time.monotonic() + LATER, ProcessTable())
    assert list(walk) == []
    assert walk.unseen == [Holding(10**7, GPU)]


def test_a_process_that_started_after_the_driver_was_asked_is_another() -> None:
    with sleeping() as child:
        stat = stat_of(child.pid)
        assert stat is not None
        for asked, number in ((stat.start / TICKS - 1, 0), (stat.start / TICKS + 1, 1)):
            walk = ProcessWalk(
                held(child.pid, asked=asked), time.monotonic() + LATER, ProcessTable()
            )
            assert (len(list(walk)), walk.unseen) == (number, [])


def test_when_time_is_up_the_rest_is_counted() -> None:
    with sleeping() as one, sleeping() as other:
        walk = ProcessWalk(held(one.pid, other.pid), time.monotonic() - 1, ProcessTable())
        assert list(walk) == []
    assert (walk.late, walk.unseen) == ({GPU: 2}, [])


def test_a_process_of_many_threads_does_not_make_it_late() -> None:
    with program(FAMILY, "2000", "0") as child:
        table = ProcessTable()
        assert child.pid in table.by_pid
        walk = ProcessWalk(held(child.pid), time.monotonic() + 0.005, table)
        found = list(walk)
    assert found == []
    assert walk.late == {GPU: 1}


def test_a_family_that_takes_long_does_not_keep_others_from_being_looked_at() -> None:
    with program(FAMILY, "2000", "0") as large, sleeping() as small:
        end = time.monotonic() + LATER
        walk = ProcessWalk(held(large.pid, small.pid), end, ProcessTable(), family=0.005)
        assert [facts.pid for facts in walk] == [small.pid]
    assert walk.late == {GPU: 1}


@needs_cpuset
def test_the_cpuset_is_that_of_its_own_cgroup() -> None:
    cpu = min(os.sched_getaffinity(0))
    with cpuset() as folder, sleeping() as confined, sleeping() as free:
        (folder / "cgroup.procs").write_text(str(confined.pid))
        (folder / "cpuset.cpus").write_text(str(cpu))
        first, second = gathered(confined.pid, free.pid)
    assert first.cpuset == frozenset({cpu})
    assert second.cpuset is not None
    assert second.cpuset > {cpu}


@needs_cpuset
def test_a_process_whose_main_thread_has_ended_is_in_the_cgroups_of_its_others() -> None:
    """The kernel has the main one in the root by then."""
    cpu = min(os.sched_getaffinity(0))
    with cpuset() as folder, program(HEADLESS) as child:
        (folder / "cgroup.procs").write_text(str(child.pid))
        (folder / "cpuset.cpus").write_text(str(cpu))
        (facts,) = gathered(child.pid)
        assert facts.state == "Z"
        assert facts.cpuset == frozenset({cpu})
        assert f"cpuset:/{folder.name}\n" in facts.cgroups
        child.kill()
        child.wait()


@needs_cpuset
@pytest.mark.parametrize(
    ("hierarchy", "is_confined"),
    [
        pytest.param(HIERARCHY, True, id="all of the machine's CPUs were chosen for it"),
        pytest.param(FREEZER, False, id="its tasks have masks alone"),
    ],
)
def test_whether_slurm_confines_its_job(hierarchy: Path, is_confined: bool) -> None:
    slurms = hierarchy / f"slurm_test-{os.getpid()}"
    job = slurms / "uid_0" / "job_7"
    job.mkdir(parents=True)
    try:
        for folder in (slurms, job.parent, job) if hierarchy == HIERARCHY else ():
            for file in ("cpuset.mems", "cpuset.cpus"):
                (folder / file).write_text((HIERARCHY / file).read_text())
        with sleeping() as task, sleeping() as other:
            (job / "cgroup.procs").write_text(str(task.pid))
            first, second = gathered(task.pid, other.pid)
    finally:
        for folder in (job, job.parent, slurms):
            folder.rmdir()
    assert first.membership.job == Job("slurm", "7")
    assert first.cpuset == second.cpuset
    assert first.is_confined is is_confined
    assert second.is_confined


def test_processes_that_end_start_others_and_change_are_no_error() -> None:
    with program(CHURN) as churning:
        seen = [gathered(churning.pid) for _ in range(100)]
        churning.kill()
        seen += [gathered(churning.pid) for _ in range(100)]
        churning.wait()
        assert gathered(churning.pid) == []
    assert max(len(facts.threads) for found in seen for facts in found) >= 2
    for facts in (facts for found in seen for facts in found):
        assert facts.threads[0].tid == facts.pid
        assert len({thread.tid for thread in facts.threads}) == len(facts.threads)


def copied(root: Path, *pids: int) -> Path:
    """Copy what the kernel has of processes, without their children: a kernel may not tell them."""
    for pid in pids:
        for tid in thread_ids(pid):
            (root / f"{pid}/task/{tid}").mkdir(parents=True)
            shutil.copyfile(f"/proc/{pid}/task/{tid}/stat", root / f"{pid}/task/{tid}/stat")
        for name in ("stat", "status", "cgroup"):
            shutil.copyfile(f"/proc/{pid}/{name}", root / f"{pid}/{name}")
    return root


def test_where_the_kernel_names_no_children_every_process_is_asked_for_its_parent(
    tmp_path: Path,
) -> None:
    with program(FAMILY, "2", "1") as child:
        deadline = time.monotonic() + LATER
        while len(expected := gathered(child.pid)) < 3:
            assert time.monotonic() < deadline
        proc = copied(tmp_path / "proc", *(facts.pid for facts in expected))
        found = gathered(child.pid, proc=str(proc))
    assert [facts.pid for facts in found] == [facts.pid for facts in expected]


def test_a_child_whose_number_is_anothers_by_now_is_not_taken_for_one(tmp_path: Path) -> None:
    with sleeping() as child, sleeping() as other:
        proc = copied(tmp_path / "proc", child.pid, other.pid)
        (proc / "thread-self").mkdir()
        (proc / "thread-self/children").touch()
        (proc / f"{child.pid}/task/{child.pid}/children").write_text(f"{other.pid} ")
        assert [facts.pid for facts in gathered(child.pid, proc=str(proc))] == [child.pid]
        stat = proc / str(other.pid) / "stat"
        stat.write_text(stat.read_text().replace(f" {os.getpid()} ", f" {child.pid} ", 1))
        found = gathered(child.pid, proc=str(proc))
    assert [facts.pid for facts in found] == [child.pid, other.pid]


def test_a_process_that_ends_while_it_is_read_and_whose_number_another_gets_is_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sleeping() as child:
        proc = copied(tmp_path / "proc", child.pid)
        stat = stat_of(child.pid)
        assert stat is not None

        def uid_of(pid: int, proc: str) -> int | None:
            """Read it, and have another process get the number afterwards."""
            file = Path(proc, str(pid), "stat")
            file.write_text(file.read_text().replace(f" {stat.start} ", f" {stat.start + 1} "))
            return processes.uid_of(pid, proc)

        assert [facts.pid for facts in gathered(child.pid, proc=str(proc))] == [child.pid]
        monkeypatch.setattr(gather, "uid_of", uid_of)
        assert gathered(child.pid, proc=str(proc)) == []


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\0\xff" * 100, id="binary"),
        pytest.param(b"1 (a) S", id="too short"),
        pytest.param(b"x (a) S " + b"x " * 50, id="words for numbers"),
        pytest.param(b"\n" * 2**16, id="thousands of lines"),
        pytest.param(b")" * 2**20, id="a megabyte of parentheses"),
        pytest.param(b"0::/" + b"../" * 1000 + b"\n", id="a path without an end"),
        pytest.param(b"Uid:\nTgid:\n:::\n0::\n1:cpuset\n", id="lines that break off"),
        pytest.param(None, id="a folder"),
    ],
)
@pytest.mark.parametrize("file", ["stat", "status", "cgroup", "task/{pid}/stat", "task"])
def test_what_no_kernel_writes_is_no_error(
    tmp_path: Path, file: str, content: bytes | None
) -> None:
    with sleeping() as child, sleeping() as other:
        proc = copied(tmp_path / "proc", child.pid, other.pid)
        broken = proc / str(child.pid) / file.format(pid=child.pid)
        shutil.rmtree(broken) if broken.is_dir() else broken.unlink()
        if content is None:
            broken.mkdir()
        else:
            broken.write_bytes(content)
        found = gathered(child.pid, other.pid, proc=str(proc))
    assert other.pid in {facts.pid for facts in found}
    if "stat" in file.split("/") or file == "task":
        assert child.pid not in {facts.pid for facts in found}


def test_links_that_lead_to_themselves_are_no_error(tmp_path: Path) -> None:
    with sleeping() as child:
        proc = copied(tmp_path / "proc", child.pid)
        for name in ("stat", "status", "cgroup"):
            (proc / str(child.pid) / name).unlink()
            (proc / str(child.pid) / name).symlink_to(name)
        assert gathered(child.pid, proc=str(proc)) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_who_is_not_root_sees_the_processes_of_others_too() -> None:
    code = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from affinityd.audit.gather import ProcessWalk
from affinityd.linux.process_table import ProcessTable
from affinityd.audit.model import GpuHolders, Holding
os.setgid(65534); os.setuid(65534)
pid = int(sys.argv[2])
held = GpuHolders((Holding(pid, ('nvidia', 0)),))
found = list(ProcessWalk(held, time.monotonic() + 60, ProcessTable()))
print([(it.pid, it.uid, len(it.threads)) for it in found], flush=True)
sys.exit(found == [])
"""
    repository = os.fspath(REPOSITORY)
    with sleeping() as child, program(code, repository, str(child.pid)) as asking:
        assert asking.wait(LATER) == 0
