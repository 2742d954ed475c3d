"""What /proc tells of running processes and their threads.

Anything may vanish, or refuse to be read, at any moment: that is None, or missing in a list, and
never an error. Sources: proc(5), sched_getaffinity(2).
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from affinityd.cpuset import CpuSet
from affinityd.linux.files import content, lines, numbered
from affinityd.linux.procstat import Stat, parse

PROC = "/proc"
ROOT = 0  #: its uid
INIT = 1  #: the first process, which becomes the parent of what lost its own

#: /proc/self/ns/pid of those who see every process: PROC_PID_INIT_INO, kernel
#: include/linux/proc_ns.h.
INITIAL_PIDS = "pid:[4026531836]"


@dataclass(frozen=True)
class Thread:
    """One thread as it was found."""

    tid: int
    name: str
    start: int  #: clock ticks since boot: with the tid it names one thread for good
    mask: CpuSet  #: as the kernel gives it: online CPUs only
    last_cpu: int
    cpu_ticks: int  #: utime + stime, clock ticks


def stat_of(pid: int, proc: str = PROC) -> Stat | None:
    """Return a process's `stat`; None where there is no such process."""
    return parse(content(f"{proc}/{pid}/stat"))


def since_boot() -> float:
    """Return the seconds since boot, those of sleep included: what `stat` counts starts in."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def exists(pid: int) -> bool:
    """Return whether there is a process, though /proc may hide it (hidepid): kill(2), signal 0."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # the latter: larger than any pid
        return False
    except PermissionError:  # another user's
        return True
    return True


def is_running(pid: int, start: int) -> bool:
    """Return whether a process that started then runs still: its number may be another's by now."""
    stat = stat_of(pid)
    return stat is not None and stat.start == start and not stat.is_zombie


def thread_stat(pid: int, tid: int, proc: str = PROC) -> Stat | None:
    """Return a thread's `stat`; None where the process has no such thread."""
    return parse(content(f"{proc}/{pid}/task/{tid}/stat"))


def thread_ids(pid: int, proc: str = PROC) -> list[int]:
    """Return a process's threads, the main one first; none where it is gone.

    A listing during which a thread ends can lack another that lives on (kernel fs/proc/base.c
    `next_tid`, `first_tid`): who must have all lists again.
    """
    return sorted(numbered(f"{proc}/{pid}/task"), key=lambda tid: tid != pid)


def uid_of(pid: int, proc: str = PROC) -> int | None:
    """Return a process's real user id; None where it is gone, or cannot be read."""
    return _status(pid, b"Uid:", proc)


def cgroups_of(pid: int, proc: str = PROC) -> str:
    """Return a process's cgroups as /proc/PID/cgroup has them; "" where it is gone."""
    return os.fsdecode(content(f"{proc}/{pid}/cgroup") or b"")


def title_of(pid: int, proc: str = PROC) -> str:
    """Return a process's command line, its words apart by blanks; "" where it is gone."""
    return os.fsdecode((content(f"{proc}/{pid}/cmdline") or b"").replace(b"\0", b" "))


def process_of(tid: int, proc: str = PROC) -> int | None:
    """Return the process that a thread belongs to, whose pid is its main thread's id."""
    return _status(tid, b"Tgid:", proc)


def mask_of(tid: int) -> CpuSet | None:
    """Return a thread's affinity mask; a pid stands for its main thread. None where it is gone."""
    if tid <= 0:  # to the kernel 0 is whoever asks
        return None
    try:
        return frozenset(os.sched_getaffinity(tid))
    except (OSError, OverflowError):  # gone, or larger than any pid
        return None


def threads(pid: int) -> list[Thread]:
    """Return a process's threads, the main one first, each with its mask and its last CPU."""
    found = []
    for tid in thread_ids(pid):
        stat, mask = thread_stat(pid, tid), mask_of(tid)
        if stat is not None and mask is not None:
            found.append(Thread(tid, stat.name, stat.start, mask, stat.last_cpu, stat.cpu_ticks))
    return found


def everyone(proc: str = PROC) -> Iterator[Stat]:
    """Yield every process, by ascending pid."""
    for pid in numbered(proc):
        stat = stat_of(pid, proc)
        if stat is not None:
            yield stat


def descendants(pid: int, proc: str = PROC) -> list[Stat]:
    """Return a process's children, theirs, and so on, parents before children; no zombies.

    The process that asks is not among them, nor is one whose parent has ended: it is somebody
    else's now.
    """
    children = defaultdict(list)
    for stat in everyone(proc):
        if not stat.is_zombie and stat.number != os.getpid():
            children[stat.parent].append(stat)
    found = children.pop(pid, [])
    for stat in found:  # which grows as it is gone through
        found += children.pop(stat.number, [])
    return found


def _status(pid: int, name: bytes, proc: str) -> int | None:
    """Return the first number of a line of a process's `status`."""
    for line in lines(f"{proc}/{pid}/status"):
        first = line.removeprefix(name).split()[:1]
        if line.startswith(name) and first and first[0].isdigit():
            return int(first[0])
    return None
