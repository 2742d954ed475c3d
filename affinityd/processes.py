"""What /proc tells of running processes and their threads.

Anything may vanish, or refuse to be read, at any moment: that is None, or missing in a list, and
never an error. Sources: proc(5), sched_getaffinity(2), kernel fs/proc/array.c `do_task_stat`.
"""

# ruff: noqa: PTH208 - thousands of files are read at once; pathlib would double the time

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from affinityd.cpuset import CpuSet

PROC = "/proc"
ZOMBIE = "Z"

MOST = 65536  #: bytes that are read at once

#: Bits of a task's flags, kernel include/linux/sched.h.
PF_KTHREAD = 0x00200000
PF_NO_SETAFFINITY = 0x04000000


@dataclass(frozen=True)
class Stat:
    """One process or thread as its `stat` file has it."""

    number: int  #: pid or tid, field 1
    name: str  #: field 2, without its parentheses; for people: what is no UTF-8 is replaced
    state: str  #: field 3
    parent: int  #: pid, field 4
    session: int  #: pid of the process that began its session, field 6
    flags: int  #: field 9
    user_time: int  #: clock ticks spent outside of the kernel, field 14
    system_time: int  #: and in it, field 15
    threads: int  #: field 20
    start: int  #: clock ticks since boot, field 22: with the number it names one process for good
    last_cpu: int  #: field 39

    @property
    def cpu_ticks(self) -> int:
        """All the time that it spent on CPUs, clock ticks."""
        return self.user_time + self.system_time

    @property
    def is_kernel_thread(self) -> bool:
        """Whether it is a part of the kernel."""
        return bool(self.flags & PF_KTHREAD)

    @property
    def takes_mask(self) -> bool:
        """Whether the kernel lets anybody set its mask: not that of per-CPU threads."""
        return not self.flags & PF_NO_SETAFFINITY

    @property
    def is_zombie(self) -> bool:
        """Whether it has ended and nobody has asked how; a main thread may end before the rest."""
        return self.state == ZOMBIE and self.threads <= 1


@dataclass(frozen=True)
class Thread:
    """Where one thread may run, and where it ran last."""

    tid: int
    name: str
    mask: CpuSet  #: as the kernel gives it: online CPUs only
    last_cpu: int


def stat_of(pid: int, proc: str = PROC) -> Stat | None:
    """Return a process's `stat`; None where there is no such process."""
    return _parse(_read(f"{proc}/{pid}/stat"))


def thread_stat(pid: int, tid: int, proc: str = PROC) -> Stat | None:
    """Return a thread's `stat`; None where the process has no such thread."""
    return _parse(_read(f"{proc}/{pid}/task/{tid}/stat"))


def thread_ids(pid: int, proc: str = PROC) -> list[int]:
    """Return a process's threads, the main one first; none where it is gone.

    A listing during which a thread ends can lack another that lives on (kernel fs/proc/base.c
    `next_tid`, `first_tid`): who must have all lists again.
    """
    return sorted(_numbers(f"{proc}/{pid}/task"), key=lambda tid: tid != pid)


def children_of(pid: int, tid: int, proc: str = PROC) -> list[int]:
    """Return the processes that a thread of a process has started, as far as they live.

    One that ends meanwhile can hide another: kernel fs/proc/array.c `get_children_pid`. Kernels
    without CONFIG_PROC_CHILDREN name none: `tells_children`.
    """
    named = (_read(f"{proc}/{pid}/task/{tid}/children") or b"").split()
    return [int(word) for word in named if word.isdigit()]


def tells_children(proc: str = PROC) -> bool:
    """Return whether this kernel names the children of a thread."""
    return os.access(f"{proc}/thread-self/children", os.R_OK)


def uid_of(pid: int, proc: str = PROC) -> int | None:
    """Return a process's real user id; None where it is gone, or cannot be read."""
    for line in (_read(f"{proc}/{pid}/status") or b"").splitlines():
        if line.startswith(b"Uid:"):
            return _number(line.split()[1:2])
    return None


def cgroups_of(pid: int, proc: str = PROC) -> str:
    """Return a process's cgroups as /proc/PID/cgroup has them; "" where it is gone."""
    return os.fsdecode(_read(f"{proc}/{pid}/cgroup") or b"")


def title_of(pid: int, proc: str = PROC) -> str:
    """Return a process's command line, its words apart by blanks; "" where it is gone."""
    return os.fsdecode((_read(f"{proc}/{pid}/cmdline") or b"").replace(b"\0", b" "))


def process_of(tid: int, proc: str = PROC) -> int | None:
    """Return the process that a thread belongs to, whose pid is its main thread's id."""
    for line in (_read(f"{proc}/{tid}/status") or b"").splitlines():
        if line.startswith(b"Tgid:"):
            return int(line.split()[1])
    return None


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
            found.append(Thread(tid, stat.name, mask, stat.last_cpu))
    return found


def everyone(proc: str = PROC) -> Iterator[Stat]:
    """Yield every process, by ascending pid."""
    for pid in _numbers(proc):
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


def _numbers(folder: str) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(folder) if name.isdigit())
    except OSError:
        return []


def _read(path: str) -> bytes | None:
    """Return a file as it is; None where it cannot be read. A file object would cost as much."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        data = part = os.read(file, MOST)
        while part:  # a long list comes a page at a time
            part = os.read(file, MOST)
            data += part
    except OSError:
        return None
    finally:
        os.close(file)
    return data


def _number(words: list[bytes]) -> int | None:
    return int(words[0]) if words and words[0].isdigit() else None


def _parse(data: bytes | None) -> Stat | None:
    """Read a `stat` file; a name may hold anything, blanks and parentheses too."""
    if not data:
        return None
    head, _, tail = data.rpartition(b")")
    number, _, name = head.partition(b" (")
    fields = [b"", b"", b"", *tail.split()]  # so that an index is proc(5)'s number of the field
    try:
        return Stat(
            number=int(number),
            name=name.decode(errors="replace"),
            state=fields[3].decode(),
            parent=int(fields[4]),
            session=int(fields[6]),
            flags=int(fields[9]),
            user_time=int(fields[14]),
            system_time=int(fields[15]),
            threads=int(fields[20]),
            start=int(fields[22]),
            last_cpu=int(fields[39]),
        )
    except (ValueError, IndexError):  # it is no such file
        return None
