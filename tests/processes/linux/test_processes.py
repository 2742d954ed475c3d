"""What /proc tells, of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from affinityd.linux import processes
from affinityd.linux.process_table import ProcessTable, ancestors, descendants
from tests.support.children import CHURN, program, sleeping, threads

#: One thread more, of a name that looks like the end of one; both stay on the first CPU.
THREAD = """
import os, threading
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def other():
    open('/proc/thread-self/comm', 'w').write(') R 1 (x y')
    print(threading.get_native_id(), flush=True)
    input()
threading.Thread(target=other).start()
"""

#: A process that has a child, which has a child; each pid is printed when all run.
GRANDCHILD = """
import os, sys
if os.fork() == 0 and os.fork() == 0:
    print(os.getppid(), os.getpid(), flush=True)
sys.stdin.read()
"""

GRANDCHILD_READY = GRANDCHILD.replace("os.getppid(), os.getpid()", "'ready'")

#: A child that has ended and that nobody has asked how.
ZOMBIE = """
import os
pid = os.fork() or os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
print(pid, flush=True)
input()
"""

#: The main thread ends, another lives on.
HEADLESS = """
import ctypes, threading, time
def other():
    time.sleep(0.1)
    print('ready', flush=True)
    input()
threading.Thread(target=other).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_thread_is_told_by_its_name_mask_and_last_cpu() -> None:
    with program(THREAD) as child:
        main, other = threads(child.pid)
    cpu = min(os.sched_getaffinity(0))
    assert main.tid == child.pid
    assert main.name.startswith("python")
    assert other.name == ") R 1 (x y"
    assert (other.mask, other.last_cpu) == (frozenset({cpu}), cpu)
    assert (main.mask, main.last_cpu) == (frozenset({cpu}), cpu)


def test_what_the_kernel_writes_of_this_process_is_read_as_it_means_it() -> None:
    stat = processes.stat_of(os.getpid())
    assert stat is not None
    assert (stat.number, stat.parent) == (os.getpid(), os.getppid())
    assert stat.name == Path("/proc/self/comm").read_text().rstrip("\n")
    assert stat.state == "R"
    assert stat.threads == len(processes.thread_ids(os.getpid()))
    assert stat.takes_mask
    assert not stat.is_kernel_thread
    assert not stat.is_zombie


def test_a_process_has_the_session_and_user_that_it_says_it_has() -> None:
    code = "import os; os.setsid(); print('ready', flush=True); input()"
    with program(code) as child, sleeping() as other:
        sessions = [processes.stat_of(pid) for pid in (child.pid, other.pid)]
        assert [stat and stat.session for stat in sessions] == [child.pid, os.getsid(0)]
        assert processes.uid_of(child.pid) == os.getuid()
        assert processes.cgroups_of(child.pid) == Path(f"/proc/{child.pid}/cgroup").read_text()
        assert processes.title_of(other.pid).split()[1:3] == ["-I", "-S"]


def test_the_time_of_a_thread_is_told_in_and_outside_of_the_kernel() -> None:
    code = """
import os
while os.times().user < 0.1: sum(range(10**5))
while os.times().system < 0.1: open('/proc/self/status').read()
print('ready', flush=True)
input()
"""
    with program(code) as child:
        stat = processes.stat_of(child.pid)
    assert stat is not None
    assert min(stat.user_time, stat.system_time) >= 0.05 * os.sysconf("SC_CLK_TCK")
    assert stat.cpu_ticks == stat.user_time + stat.system_time


@pytest.mark.parametrize("lists_children", [True, False])
def test_a_table_of_processes_has_their_children_and_ancestors(*, lists_children: bool) -> None:
    with program(GRANDCHILD_READY) as child:
        table = ProcessTable()
        if not lists_children:  # as kernels without CONFIG_PROC_CHILDREN
            table.__dict__["_lists_children"] = False
        (own,) = table.children(child.pid, processes.thread_ids(child.pid))
        (its,) = table.children(own, [own])
        assert table.children(its, [its]) == []
        above = list(ancestors(its, table.parents))
        assert above[:4] == [its, own, child.pid, os.getpid()]
        assert [stat.number for stat in descendants(child.pid)] == [own, its]


def test_a_table_of_a_folder_that_is_no_proc_is_empty(tmp_path: Path) -> None:
    table = ProcessTable(str(tmp_path))
    assert (table.by_pid, table.children(7, [7]), table.has_all) == ({}, [], False)


def test_the_main_thread_comes_first() -> None:
    with program(THREAD) as child:
        tids = processes.thread_ids(child.pid)
    assert tids[0] == child.pid
    assert len(tids) == 2


def test_a_thread_id_leads_to_its_process() -> None:
    with program(THREAD) as child:
        _, tid = processes.thread_ids(child.pid)
        assert processes.process_of(tid) == child.pid
        assert processes.process_of(child.pid) == child.pid


def test_descendants_come_parents_first_whatever_their_numbers() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", GRANDCHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        line = [int(word) for word in child.stdout.readline().split()]
        found = descendants(child.pid)
        child.communicate()
    assert [stat.number for stat in found] == line
    assert [stat.parent for stat in found] == [child.pid, line[0]]


def test_a_tree_may_go_down_in_numbers_and_have_what_looks_like_a_circle(tmp_path: Path) -> None:
    rest = "0 0 0 0 0 " + "0 " * 10 + "1 0 77 " + "0 " * 30
    for pid, parent in [(9, 1), (5, 9), (3, 5), (4, 9), (9000, 3), (20, 30), (30, 20)]:
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (a (b) c) S {parent} {rest}\n")
    (tmp_path / "6").mkdir()  # which has just ended
    found = descendants(9, str(tmp_path))
    assert [stat.number for stat in found] == [4, 5, 3, 9000]
    assert {stat.name for stat in found} == {"a (b) c"}
    assert [stat.number for stat in descendants(20, str(tmp_path))] == [30, 20]


def test_the_process_that_asks_is_nobodys_descendant() -> None:
    with sleeping() as child:
        found = {stat.number for stat in descendants(os.getppid())}
        assert os.getpid() not in found
        assert child.pid in {stat.number for stat in descendants(os.getpid())}


def test_a_zombie_is_known_as_one_and_is_no_descendant() -> None:
    with program(ZOMBIE.replace("print(pid", "print('ready'")) as child:
        (zombie,) = (stat for stat in processes.everyone() if stat.parent == child.pid)
        assert zombie.is_zombie
        assert descendants(child.pid) == []


def test_a_process_whose_main_thread_has_ended_is_no_zombie() -> None:
    with program(HEADLESS) as child:
        stat = processes.stat_of(child.pid)
        assert stat is not None
        assert (stat.state, stat.threads) == ("Z", 2)
        assert not stat.is_zombie
        assert len(threads(child.pid)) == 2


def test_a_process_cannot_say_by_its_name_whose_it_is() -> None:
    code = """
import ctypes
ctypes.CDLL(None).prctl(15, b'a\\rUid:\\t7\\x85', 0, 0, 0)  # PR_SET_NAME
print('ready', flush=True)
input()
"""
    with program(code) as child:
        assert b"\rUid:\t7" in Path(f"/proc/{child.pid}/status").read_bytes()
        assert processes.uid_of(child.pid) == os.getuid()


@pytest.mark.parametrize("pid", [0, -1, 10**9, 10**12])
def test_of_a_process_that_is_not_there_nothing_is_known(pid: int) -> None:
    assert processes.stat_of(pid) is None
    assert processes.thread_ids(pid) == []
    assert threads(pid) == []
    assert processes.process_of(pid) is None
    assert processes.uid_of(pid) is None
    assert processes.cgroups_of(pid) == processes.title_of(pid) == ""
    assert descendants(pid) == [] or pid == 0  # 0 is the kernel's own, of /proc/1


@pytest.mark.parametrize("tid", [0, -1, 10**9, 10**12])
def test_a_mask_is_never_that_of_whoever_asks_instead(tid: int) -> None:
    assert processes.mask_of(tid) is None


def test_a_process_that_ends_while_it_is_read_is_missing_and_no_error() -> None:
    with program(CHURN) as child:
        seen = [len(threads(child.pid)) for _ in range(300)]
        child.kill()
        seen += [len(threads(child.pid)) for _ in range(300)]
        child.wait()
        assert threads(child.pid) == []
    assert max(seen) >= 2


@pytest.mark.skipif(processes.stat_of(2) is None, reason="no kernel threads in this pid namespace")
def test_the_kernels_own_threads_are_known() -> None:
    kernel = [stat for stat in processes.everyone() if stat.is_kernel_thread]
    assert 2 in {stat.number for stat in kernel}
    assert {stat.takes_mask for stat in kernel} == {True, False}
