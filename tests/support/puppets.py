"""Ranks of a made-up GPU job, with workers and threads, which unpin themselves as they are told."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from affinityd.cpuset import CpuSet
from affinityd.linux.processes import mask_of, stat_of, thread_ids
from tests.support.children import children_of
from tests.support.cpusets import cgroup
from tests.support.daemons import eventually

ALL = frozenset(os.sched_getaffinity(0))

#: argv: workers, threads of each process besides the main one. SIGUSR1 has each of them run
#: wherever it may; a worker ends with its rank, a rank with its stdin.
RANK = """
import os, signal, sys, threading
workers, threads = map(int, sys.argv[1:])
anywhere = os.sched_getaffinity(0)
def unpin(*_):
    for tid in os.listdir('/proc/self/task'):
        os.sched_setaffinity(int(tid), anywhere)
signal.signal(signal.SIGUSR1, unpin)
def wait():
    os.read(ended, 1)
ended, alive = os.pipe()
threading.stack_size(65536)
is_rank = True
for _ in range(workers):
    if os.fork() == 0:
        is_rank = False
        os.close(alive)
        break
for _ in range(threads):
    threading.Thread(target=wait, daemon=True).start()
if not is_rank:
    wait()
    os._exit(0)
print('ready', flush=True)
sys.stdin.read()
"""

#: Seconds after which the daemons of `enforcing` no longer let a process alone as it has just
#: started; others take ten times as long.
GRACE = 1.0
GROWN_UP = GRACE + 0.5


@dataclass
class Puppet:
    process: subprocess.Popen[str]
    born: float  #: time.monotonic()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def workers(self) -> list[int]:
        return children_of(self.pid)

    @property
    def everybody(self) -> list[int]:
        return [self.pid, *self.workers]

    @property
    def masks(self) -> set[CpuSet]:
        return set[CpuSet]().union(*map(masks, self.everybody))

    def enter(self, folder: Path) -> None:
        for pid in self.everybody:
            (folder / "cgroup.procs").write_text(str(pid))

    def grow_up(self) -> None:
        time.sleep(max(0.0, self.born + GROWN_UP - time.monotonic()))

    def end(self) -> None:
        pids = self.everybody
        self.process.kill()
        self.process.communicate()
        eventually(lambda: not any(map(masks, pids)), "its workers have ended")


class Troupe:
    """Ranks that were started early: by the time that a test needs them they are grown up."""

    def __init__(self, number: int) -> None:
        self._waiting = [start() for _ in range(number)]

    def take(self, number: int = 1) -> list[Puppet]:
        taken, self._waiting = self._waiting[:number], self._waiting[number:]
        assert len(taken) == number, "no more were started"
        return taken

    def dismiss(self) -> None:
        for puppet in self._waiting:
            puppet.end()


@contextmanager
def playing(puppets: Sequence[Puppet], *parts: str, cpus: str) -> Iterator[Path]:
    """Have ranks, once they are grown up, in a cgroup; they end with the block."""
    with cgroup(*parts, cpus=cpus) as folder, ExitStack() as stack:
        for puppet in puppets:
            stack.callback(puppet.end)
        for puppet in puppets:
            puppet.grow_up()
            puppet.enter(folder)
        yield folder


def start(workers: int = 2, threads: int = 1, **env: str) -> Puppet:
    """Start a rank, with so many workers, and threads of each besides the main one."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", RANK, str(workers), str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return Puppet(process, time.monotonic())


def masks(pid: int) -> set[CpuSet]:
    """Return the masks of a process's threads; none where it has ended, noticed or not."""
    stat = stat_of(pid)
    if stat is None or stat.is_zombie:
        return set()
    return {mask for tid in thread_ids(pid) if (mask := mask_of(tid)) is not None}


def unpin(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGUSR1)
