"""Facts about running processes and their threads, from /proc, and about the peer of a unix socket.

A file may vanish, or refuse to be read, at any moment: the answer is then None or incomplete, never
an error. A pid may be reused. Sources: proc(5), sched_getaffinity(2), kernel fs/proc/array.c
`do_task_stat`; unix(7), SO_PEERCRED; struct ucred of kernel include/linux/socket.h.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from affinityd.cpuset import CpuSet
from affinityd.grouping import grouped
from affinityd.linux.files import content, listed, numbered
from affinityd.text import whole_number

PROC = "/proc"
ROOT = 0  #: uid of root
FIRST_USER = 1000  #: uids below this are the system's, login.defs(5): UID_MIN
INIT = 1  #: the first process, which becomes the parent of orphans
MOST_ID = 2**32 - 1  #: the largest id of a user or a process
#: Value of /proc/self/ns/pid if every process is visible: PROC_PID_INIT_INO, proc_ns.h.
INITIAL_PIDS = "pid:[4026531836]"
ZOMBIE = "Z"
ENDED = frozenset("ZX")  #: states of a main thread that has ended
#: Bits of a task's flags, kernel include/linux/sched.h.
PF_KTHREAD = 0x00200000
PF_NO_SETAFFINITY = 0x04000000

#: kernel include/uapi/asm-generic/socket.h; Python has no name for it.
SO_PEERGROUPS = 59
MAX_GROUPS = 1024  #: bytes that Python reads of a socket option at most: 256 groups


@dataclass(frozen=True)
class Stat:
    """A process or thread, as its `stat` file describes it."""

    number: int  #: pid or tid
    name: str  #: without the parentheses; invalid UTF-8 is replaced
    state: str
    parent: int  #: pid
    group: int  #: pid of the process that leads its process group, such as a shell's job
    session: int  #: pid of the process that leads its session
    flags: int
    user_time: int  #: clock ticks spent outside of the kernel
    system_time: int  #: clock ticks spent in the kernel
    threads: int
    start: int  #: clock ticks since boot: start and number together never name another process
    last_cpu: int
    children_user_time: int = (
        0  #: clock ticks of ended children that it has waited for, and of their children
    )
    children_system_time: int = 0

    @property
    def cpu_ticks(self) -> int:
        """All CPU time of the process, clock ticks; its ended threads count."""
        return self.user_time + self.system_time

    @property
    def children_ticks(self) -> int:
        """All CPU time of the children that it has waited for, clock ticks."""
        return self.children_user_time + self.children_system_time

    @property
    def is_kernel_thread(self) -> bool:
        """Whether it is a thread of the kernel."""
        return bool(self.flags & PF_KTHREAD)

    @property
    def takes_mask(self) -> bool:
        """Whether the kernel allows setting its mask; for per-CPU threads it does not."""
        return not self.flags & PF_NO_SETAFFINITY

    @property
    def is_zombie(self) -> bool:
        """Whether it is a zombie; a main thread may be one while other threads run."""
        return self.state == ZOMBIE and self.threads <= 1


@dataclass(frozen=True)
class Thread:
    """One thread at the moment of a scan."""

    tid: int
    name: str
    start: int  #: clock ticks since boot: start and tid together never name another thread
    mask: CpuSet  #: as the kernel gives it: online CPUs only
    last_cpu: int
    cpu_ticks: int  #: utime + stime, clock ticks


def user_name(uid: int) -> str | None:
    """Return a user's name; None: the uid has none. A directory service (LDAP) may take seconds."""
    import pwd  # noqa: PLC0415 - bind() can be imported without this module

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def parse_stat(data: bytes | None) -> Stat | None:
    """Read a `stat` file; None if it is malformed. A name may have blanks and parentheses."""
    head, _, tail = (data or b"").rpartition(b")")
    number, _, name = head.partition(b" (")
    fields = [b"", b"", b"", *tail.split()]  # an index is a field's number in proc_pid_stat(5)
    try:
        # The fields of `Stat` from `parent` on.
        numbers = (int(fields[field]) for field in (4, 5, 6, 9, 14, 15, 20, 22, 39, 16, 17))
        return Stat(int(number), name.decode(errors="replace"), fields[3].decode(), *numbers)
    except (ValueError, IndexError):  # the file is no `stat`
        return None


def stat_of(pid: int, proc: str = PROC) -> Stat | None:
    """Return a process's `stat`; None where there is no such process."""
    return parse_stat(content(f"{proc}/{pid}/stat"))


def thread_stat(pid: int, tid: int, proc: str = PROC) -> Stat | None:
    """Return a thread's `stat`; None where the process has no such thread."""
    return parse_stat(content(f"{proc}/{pid}/task/{tid}/stat"))


def children_of(pid: int, proc: str = PROC, tids: Iterable[int | str] = ()) -> list[int]:
    """Return the children; none without CONFIG_PROC_CHILDREN. `tids`: the threads, if known."""
    folder = f"{proc}/{pid}/task"
    children: list[int] = []
    for tid in tids or listed(folder):
        children += map(int, (content(f"{folder}/{tid}/children") or b"").split())
    return children


def since_boot() -> float:
    """Return the seconds since boot, including sleep, as in the start times of `stat`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def exists(pid: int) -> bool:
    """Return whether there is a process, though /proc may hide it (hidepid): kill(2), signal 0."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # OverflowError: larger than any pid
        return False
    except PermissionError:  # another user's
        return True
    return True


def has_ended(pid: int, start: int, proc: str = PROC) -> bool:
    """Return whether a process has ended, or is a zombie."""
    stat = stat_of(pid, proc)
    return stat is None or stat.start != start or stat.is_zombie


def thread_ids(pid: int, proc: str = PROC) -> list[int]:
    """Return a process's threads, the main one first; none if it has ended.

    A thread that ends now can hide another (kernel fs/proc/base.c `next_tid`): read again.
    """
    return sorted(numbered(f"{proc}/{pid}/task"), key=lambda tid: tid != pid)


def status_of(pid: int | str, name: str, proc: str = PROC) -> str:
    """Return a line of a process's `status` without its name; "" where it cannot be read."""
    beginning = f"{name}:".encode()
    for line in (content(f"{proc}/{pid}/status") or b"").split(b"\n"):  # a name may contain a \r
        if line.startswith(beginning):
            return line.removeprefix(beginning).decode(errors="replace").strip()
    return ""


def uid_of(pid: int, proc: str = PROC) -> int | None:
    """Return a process's real user id; None if it has ended, or cannot be read."""
    return whole_number(status_of(pid, "Uid", proc).partition("\t")[0], MOST_ID)


def process_of(tid: int, proc: str = PROC) -> int | None:
    """Return a thread's process: the pid is its main thread's id."""
    return whole_number(status_of(tid, "Tgid", proc), MOST_ID)


def cgroups_of(pid: int, proc: str = PROC) -> str:
    """Return a process's cgroups as /proc/PID/cgroup has them; "" if it has ended."""
    return os.fsdecode(content(f"{proc}/{pid}/cgroup") or b"")


def title_of(pid: int, proc: str = PROC) -> str:
    """Return a process's command line, with blanks between words; "" if it has ended."""
    return os.fsdecode((content(f"{proc}/{pid}/cmdline") or b"").replace(b"\0", b" "))


def everyone(proc: str = PROC) -> Iterator[Stat]:
    """Yield every process, by ascending pid."""
    return filter(None, (stat_of(pid, proc) for pid in numbered(proc)))


def descendants(pid: int, proc: str = PROC) -> list[Stat]:
    """Return the living descendants, parents before children, without the calling process."""
    here = (stat for stat in everyone(proc) if not stat.is_zombie and stat.number != os.getpid())
    children = grouped(here, lambda stat: stat.parent)
    below = children.pop(pid, [])
    for stat in below:  # `below` grows during the loop
        below += children.pop(stat.number, [])
    return below


def ancestors(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    """Yield a process, its parent, and so on, as far as known; `parents`: the parent of each."""
    met: set[int] = set()  # the parents were read one after another, and may form a circle
    while pid in parents and pid not in met:
        met.add(pid)
        yield pid
        pid = parents[pid]


class ProcessTable:
    """All processes at one moment, read on first use."""

    def __init__(self, proc: str = PROC) -> None:
        self.proc = proc

    @cached_property
    def by_pid(self) -> Mapping[int, Stat]:
        """Every process by its pid."""
        return {stat.number: stat for stat in everyone(self.proc)}

    @cached_property
    def parents(self) -> Mapping[int, int]:
        """The parent of every process, by its pid."""
        return {pid: stat.parent for pid, stat in self.by_pid.items()}

    def children(self, pid: int, tids: Iterable[int]) -> list[int]:
        """Return the pids of the running children of a process's threads.

        Kernels with CONFIG_PROC_CHILDREN list them, proc_tid_children(5); without it every process
        is read, which is most of a scan's cost. A child that ends during the read can hide another.
        """
        if not self._lists_children:
            return [stat.number for stat in self._children.get(pid, ())]
        return children_of(pid, self.proc, tids) if tids else []

    @cached_property
    def _lists_children(self) -> bool:
        return os.access(f"{self.proc}/thread-self/children", os.R_OK)

    @cached_property
    def _children(self) -> Mapping[int, Sequence[Stat]]:
        return grouped(self.by_pid.values(), lambda stat: stat.parent)

    @property
    def has_all(self) -> bool:
        """Whether the first process is visible: hidepid of proc(5) hides root's processes."""
        return INIT in self.by_pid


class Credentials(NamedTuple):
    """The process at the other end of a unix socket, as numbered in this process's namespaces."""

    pid: int  #: 0 if its pid namespace is neither this one nor below it
    uid: int
    gid: int


def credentials(connection: Any) -> Credentials:  # noqa: ANN401 - a socket, or uvloop's view of one
    """Return the peer's credentials. Raises OSError if the kernel does not know it."""
    return Credentials(
        *struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    )


def groups(connection: Any, own: int) -> frozenset[int]:  # noqa: ANN401 - as above
    """Return the gids of the peer: `own`, and its other groups if they are few enough."""
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, MAX_GROUPS)
    except OSError:  # a kernel before 4.13, or too many groups
        data = b""
    return frozenset({own, *struct.unpack(f"{len(data) // 4}I", data)})


def overflow_uid() -> int:
    """Return the uid that stands for users unknown in this user namespace, user_namespaces(7)."""
    return int(content("/proc/sys/kernel/overflowuid") or 65534)
