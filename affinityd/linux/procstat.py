"""One process or thread as its `stat` file in /proc has it.

Sources: proc_pid_stat(5), kernel fs/proc/array.c `do_task_stat`.
"""

from __future__ import annotations

from dataclasses import dataclass

ZOMBIE = "Z"
ENDED = frozenset("ZX")  #: states of a main thread that runs no more

#: Bits of a task's flags, kernel include/linux/sched.h.
PF_KTHREAD = 0x00200000
PF_NO_SETAFFINITY = 0x04000000

#: Fields behind the name, from 0.
STATE, THREADS, START = 0, 17, 19


@dataclass(frozen=True)
class Stat:
    """One process or thread as its `stat` file has it."""

    number: int  #: pid or tid, field 1
    name: str  #: field 2, without its parentheses; for people: what is no UTF-8 is replaced
    state: str  #: field 3
    parent: int  #: pid, field 4
    session: int  #: pid of the process that began its session, field 6
    terminal: int  #: device number of its controlling terminal, field 7; 0: it has none
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


def parse(data: bytes | None) -> Stat | None:
    """Read a `stat` file; None for what is none. A name may hold blanks and parentheses too."""
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
            terminal=int(fields[7]),
            flags=int(fields[9]),
            user_time=int(fields[14]),
            system_time=int(fields[15]),
            threads=int(fields[20]),
            start=int(fields[22]),
            last_cpu=int(fields[39]),
        )
    except (ValueError, IndexError):  # it is no such file
        return None


def start_of(data: bytes | None) -> bytes | None:
    """Return when the process of a `stat` file began; None where it has ended.

    With its pid that names it for good. To read all of the file takes five times as long.
    """
    fields = (data or b"").rpartition(b")")[2].split(None, START + 1)
    if len(fields) <= START or (fields[STATE] == b"Z" and int(fields[THREADS]) <= 1):
        return None
    return fields[START]
