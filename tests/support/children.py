"""Real processes for tests: programs that report when they are ready, and run until stopped."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from affinityd.linux.cgroup import mask_of
from affinityd.linux.processes import Stat, Thread, everyone, stat_of, thread_ids, thread_stat
from tests.support.daemons import eventually

#: Five threads each start other threads, one after the other, for ever.
CHURN = """
import threading
def work():
    while True:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
for _ in range(5):
    threading.Thread(target=work, daemon=True).start()
print('ready', flush=True)
input()
"""

#: A parent has not waited for its child, which has ended.
ZOMBIE = """
import os
pid = os.fork() or os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
print('ready', flush=True)
input()
"""

#: The main thread ends, and another thread lives on.
HEADLESS = """
import ctypes, threading, time
def other():
    while open('/proc/self/stat').read().rpartition(')')[2].split()[0] != 'Z':
        time.sleep(0.001)
    print('ready', flush=True)
    input()
threading.Thread(target=other).start()
ctypes.CDLL(None).pthread_exit(None)
"""

#: Starts one child for each argument, which is the child's environment.
PARENT = """
import json, os, sys
hears, says = os.pipe()
os.set_inheritable(says, True)
code = f"import os; os.write({says}, b'x'); os.read(0, 1)"
for env in map(json.loads, sys.argv[1:]):
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, '-I', '-S', '-c', code], env)
for _ in sys.argv[1:]:
    os.read(hears, 1)
print('ready', flush=True)
os.read(0, 1)
"""


@contextmanager
def program(
    code: str, *arguments: str, env: Mapping[str, str] | None = None, before: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """Run Python code until the end of the block, which begins when a first line is printed.

    The code ends when its stdin does, so that a failing test leaves no process. `before` is a
    command that starts Python.
    """
    with subprocess.Popen(
        [*before, sys.executable, "-I", "-S", "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline(), "the program ended before it was ready"
            yield child
        finally:
            child.kill()


@contextmanager
def sleeping(
    env: Mapping[str, str] | None = None, before: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    with program("print('ready', flush=True); input()", env=env, before=before) as child:
        yield child


@contextmanager
def parent_of(
    *children: Mapping[str, str], env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    with program(PARENT, *map(json.dumps, children), env=env) as parent:
        yield parent


def present(pid: int) -> Stat:
    """Return the facts of a process, which must not have ended."""
    stat = stat_of(pid)
    assert stat is not None
    return stat


def compute(pid: int, seconds: float = 0.3) -> None:
    end = present(pid).cpu_ticks + seconds * os.sysconf("SC_CLK_TCK")
    eventually(lambda: present(pid).cpu_ticks >= end, f"{pid} has computed for {seconds} s")


def children_of(pid: int) -> list[int]:
    return [stat.number for stat in everyone() if stat.parent == pid]


def copied(root: Path, *pids: int) -> Path:
    """Copy the kernel's files about processes, but no list of children, which a kernel may lack."""
    for pid in pids:
        tasks = [f"task/{tid}" for tid in thread_ids(pid)]
        for task in tasks:
            (root / f"{pid}/{task}").mkdir(parents=True)
        for name in ("stat", "status", "cgroup", *(f"{task}/stat" for task in tasks)):
            shutil.copyfile(f"/proc/{pid}/{name}", root / f"{pid}/{name}")
    return root


def threads(pid: int) -> list[Thread]:
    found = ((thread_stat(pid, tid), mask_of(tid)) for tid in thread_ids(pid))
    return [
        Thread(stat.number, stat.name, stat.start, mask, stat.last_cpu, stat.cpu_ticks)
        for stat, mask in found
        if stat is not None and mask is not None
    ]
