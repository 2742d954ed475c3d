"""Facts from /proc about real processes."""

import os
import sys
from pathlib import Path

import pytest

from affinityd.linux import cgroup, processes
from affinityd.linux.files import environment_of
from affinityd.linux.processes import ProcessTable, ancestors, descendants
from tests.support.children import (
    HEADLESS,
    ZOMBIE,
    children_of,
    program,
    threads,
)
from tests.support.tiny import printed

#: A second thread has a name that looks like the end of a name; both threads have one CPU.
THREAD = """
import os, threading
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def other():
    open('/proc/thread-self/comm', 'w').write(') R 1 (x y')
    print(threading.get_native_id(), flush=True)
    input()
threading.Thread(target=other).start()
"""

#: A process that has a child, which has a child.
GRANDCHILD = """
import os, sys
if os.fork() == 0 and os.fork() == 0:
    print('ready', flush=True)
sys.stdin.read()
"""

#: Starts a session of its own, and uses CPU time in the kernel and outside of it.
STRANGE = """
import ctypes, os
os.setsid()
ctypes.CDLL(None).prctl(15, b'a\\rUid:\\t7\\x85', 0, 0, 0)  # PR_SET_NAME
while os.times().user < 0.1: sum(range(10**5))
while os.times().system < 0.1: open('/proc/self/status', 'rb').read()
print('ready', flush=True)
input()
"""

#: Changes its environment.
LATER = "import os; os.environ['LATER'] = '1'; print('ready', flush=True); input()"

#: execve(2) takes any text as environment; Python's functions take only variables.
NO_VARIABLES = """
import ctypes
texts = ctypes.c_char_p * 4
words = texts(b"sh", b"-c", b"echo ready; read line", None)
ctypes.CDLL(None).execve(b"/bin/sh", words, texts(b"A=1", b"none", b"=", None))"""


def test_threads_have_name_mask_and_last_cpu_with_the_main_thread_first() -> None:
    with program(THREAD) as child:
        main, other = threads(child.pid)
        assert processes.thread_ids(child.pid) == [child.pid, other.tid]
        assert {processes.process_of(it.tid) for it in (main, other)} == {child.pid}
    cpu = min(os.sched_getaffinity(0))
    assert main.name.startswith("python")
    assert other.name == ") R 1 (x y"
    assert {(it.mask, it.last_cpu) for it in (main, other)} == {(frozenset({cpu}), cpu)}


def test_a_strange_process_name_does_not_change_the_facts() -> None:
    with program(STRANGE) as child:
        stat = processes.stat_of(child.pid)
        assert b"\rUid:\t7" in Path(f"/proc/{child.pid}/status").read_bytes()
        assert processes.uid_of(child.pid) == os.getuid()
        assert processes.cgroups_of(child.pid) == Path(f"/proc/{child.pid}/cgroup").read_text()
        assert processes.title_of(child.pid).split()[1:3] == ["-I", "-S"]
    assert stat is not None
    assert (stat.number, stat.parent, stat.session) == (child.pid, os.getpid(), child.pid)
    assert (stat.name, stat.threads) == ("a\rUid:\t7\ufffd", 1)
    assert (stat.takes_mask, stat.is_kernel_thread, stat.is_zombie) == (True, False, False)
    assert min(stat.user_time, stat.system_time) >= 0.05 * os.sysconf("SC_CLK_TCK")
    assert stat.cpu_ticks == stat.user_time + stat.system_time


@pytest.mark.parametrize("lists_children", [True, False])
def test_a_table_of_processes_has_their_children_and_ancestors(*, lists_children: bool) -> None:
    with program(GRANDCHILD) as child:
        table = ProcessTable()
        if not lists_children:  # as kernels without CONFIG_PROC_CHILDREN
            table.__dict__["_lists_children"] = False
        (own,) = table.children(child.pid, processes.thread_ids(child.pid))
        (its,) = table.children(own, [own])
        assert table.children(its, [its]) == []
        above = list(ancestors(its, table.parents))
        assert above[:4] == [its, own, child.pid, os.getpid()]
        assert [stat.number for stat in descendants(child.pid)] == [own, its]
        assert os.getpid() not in {stat.number for stat in descendants(os.getppid())}  # the caller


def test_descendants_may_have_lower_pids_and_form_a_circle(tmp_path: Path) -> None:
    rest = "0 0 0 0 0 " + "0 " * 10 + "1 0 77 " + "0 " * 30
    for pid, parent in [(9, 1), (5, 9), (3, 5), (4, 9), (9000, 3), (20, 30), (30, 20)]:
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (a (b) c) S {parent} {rest}\n")
    (tmp_path / "6").mkdir()  # a process that has just ended
    assert [stat.number for stat in descendants(9, str(tmp_path))] == [4, 5, 3, 9000]
    assert [stat.number for stat in descendants(20, str(tmp_path))] == [30, 20]
    table = ProcessTable(str(tmp_path / "none"))
    assert (table.by_pid, table.children(7, [7]), table.has_all) == ({}, [], False)


def test_a_process_without_a_main_thread_is_no_zombie() -> None:
    with program(ZOMBIE) as child, program(HEADLESS) as headless:
        (zombie,) = children_of(child.pid)
        stats = [processes.stat_of(pid) for pid in (zombie, headless.pid)]
        found = [(it.state, it.threads, it.is_zombie) for it in stats if it is not None]
        assert found == [("Z", 1, True), ("Z", 2, False)]
        assert descendants(child.pid) == []
        assert len(threads(headless.pid)) == 2


def test_a_process_whose_pid_was_reused_has_ended() -> None:
    stat = processes.stat_of(os.getpid())
    assert stat is not None
    ended = [processes.has_ended(os.getpid(), start) for start in (stat.start, stat.start - 1)]
    assert ended == [False, True]


@pytest.mark.parametrize("pid", [0, -1, 10**9, 10**12])
def test_a_missing_process_has_no_facts(pid: int) -> None:
    nothing = (processes.stat_of, processes.process_of, processes.uid_of, cgroup.mask_of)
    assert {ask(pid) for ask in nothing} == {None}
    assert environment_of(pid) is None
    assert (processes.thread_ids(pid), threads(pid)) == ([], [])
    assert processes.cgroups_of(pid) == processes.title_of(pid) == ""
    assert descendants(pid) == [] or pid == 0  # 0 is the kernel's own, of /proc/1


def test_the_environment_is_that_with_which_a_process_started() -> None:
    env = {"NAME": "a=b\n\udcff", "EMPTY": ""}
    with program(LATER, env=env) as child, program(NO_VARIABLES) as other:
        its = environment_of(child.pid) or {}
        assert environment_of(other.pid) == {"A": "1", "": ""}
    assert its.items() >= env.items()
    assert "LATER" not in its


@pytest.mark.skipif(os.geteuid() != 0, reason="only root chooses its groups")
def test_a_peer_has_its_primary_and_supplementary_groups() -> None:
    peer = (
        "import os, socket\n"
        "from affinityd.linux.processes import groups\n"
        "os.setgroups([7, 4294967294])\n"
        "with socket.socketpair()[0] as connection:\n"
        "    print(sorted(groups(connection, 5)))\n"
    )
    assert printed(sys.executable, "-c", peer) == "[5, 7, 4294967294]\n"
