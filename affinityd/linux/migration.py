"""Moves the memory of a running process to a NUMA node, a batch at a time.

A batch is a few milliseconds' work. Meanwhile a thread of the process waits only if it uses one of
these pages. If the caller is killed, each page is where it was, or where it should be. Pages that
another process maps as well stay: they may be near to that one. Source: kernel mm/migrate.c
`do_pages_move`.
"""

from __future__ import annotations

import errno
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import cycle
from mmap import PAGESIZE

from affinityd.linux import syscalls
from affinityd.linux.cgroup import Cgroups
from affinityd.linux.files import text
from affinityd.linux.resident import HUGE, mappings_of

#: Why pages stay, by the status that the kernel gives them.
BUSY = "in use, or pinned by a driver"
REASONS = {
    errno.EACCES: "another process maps it, too",
    errno.EBUSY: BUSY,
    errno.ENOMEM: "the near node is full",
}

#: Of memory cgroups of both versions: the files of limit and usage, and a line of memory.stat.
LIMITS = (
    ("cgroup2", "", "memory.max", "memory.current", "inactive_file"),
    ("cgroup", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)

LOOKED_AT = 4096  #: pages that are looked at together
BATCH = 4 * 1024 * 1024  #: bytes that move together, or one huge page


class Migration:
    """The memory of one process that moves, and how far that has come, in bytes."""

    def __init__(self, pid: int, far: Collection[int], near: Sequence[int]) -> None:
        """Take the nodes that its memory is to leave, and those that it is to go to, in turn."""
        self.moved: Counter[str] = Counter()  #: by kind
        self.stayed: Counter[tuple[str, str]] = Counter()  #: by kind and reason
        self._pid = pid
        self._far = frozenset(far)
        self._nodes = cycle(near)
        self._full = set[str]()  # kinds for which there is no more room: each try would take long

    def batches(self) -> Iterator[None]:
        """Move a batch for each step; the caller may stop after any.

        Raises OSError: ProcessLookupError (it has ended), PermissionError (no ptrace read access,
        or its cpuset does not allow a near node).
        """
        for beginning, end, kind in mappings_of(self._pid):
            step = _huge_page() if kind == HUGE else PAGESIZE
            for start in range(beginning, end, step * LOOKED_AT):
                pages = array("Q", range(start, min(start + step * LOOKED_AT, end), step))
                _, nodes = syscalls.move_pages(self._pid, pages)
                places = zip(pages, nodes, strict=True)
                far = array("Q", (page for page, node in places if node in self._far))
                size = max(1, BATCH // step)
                for first in range(0, len(far), size):
                    self._move(far[first : first + size], kind, step)
                    yield
                yield

    def _move(self, pages: array[int], kind: str, step: int) -> None:
        """Move far pages, and count where they are then: a status tells nothing of a huge page."""
        no_room = [-errno.ENOMEM] * len(pages)
        statuses = no_room if kind in self._full else self._try_all(pages, next(self._nodes))
        if statuses[-1] == -errno.ENOMEM:
            self._full.add(kind)
        _, nodes = syscalls.move_pages(self._pid, pages)
        for status, node in zip(statuses, nodes, strict=True):
            if node in self._far:
                self.stayed[kind, REASONS.get(-status, BUSY)] += step
            elif node >= 0:  # else it is no more
                self.moved[kind] += step

    def _try_all(self, pages: array[int], node: int) -> list[int]:
        """Try to move pages; return the status of each.

        Where some could not be copied the kernel leaves out those behind the next page that it
        gave a status: these are tried again.
        """
        statuses: list[int] = []
        while len(statuses) < len(pages):
            try:
                left, tried = syscalls.move_pages(self._pid, pages[len(statuses) :], node)
            except OSError as error:
                if error.errno != errno.ENOMEM:
                    raise
                return statuses + [-errno.ENOMEM] * (len(pages) - len(statuses))
            given = [place for place, status in enumerate(tried) if status != syscalls.UNTRIED]
            statuses += tried[: given[-1] + 1 if left and given else len(tried)]
        return statuses


def _huge_page() -> int:
    """Return the bytes of a default huge page; a larger one is several of them."""
    lines = (line.split() for line in text("/proc/meminfo").splitlines())
    return next(int(words[1]) * 1024 for words in lines if words[0] == "Hugepagesize:")


def room_in_cgroups(pid: int) -> float:
    """Return the bytes that a process's memory cgroups have room for, as `room_on`.

    A page that moves may count twice for a moment, and at its limit a cgroup ends processes.
    """
    rooms, cgroups = [float("inf")], Cgroups.of(pid)
    for version, name, limit, usage, idle in LIMITS:
        for folder in cgroups.folders(version, name):
            most, used = text(f"{folder}/{limit}"), text(f"{folder}/{usage}")
            freed = text(f"{folder}/memory.stat").partition(f"\n{idle} ")[2].split("\n")[0]
            if most.isdecimal() and used.isdecimal():
                rooms.append(int(most) - int(used) + int(freed or 0))
    return min(rooms)


def room_on(node: int) -> int:
    """Return the bytes that a node has free, or can free at once: of files not used lately."""
    path = f"/sys/devices/system/node/node{node}/meminfo"
    lines = (line.split() for line in text(path).splitlines())  # Node 0 MemFree: 1024 kB
    sizes = {words[2]: int(words[3]) * 1024 for words in lines if len(words) > 3}  # noqa: PLR2004
    return sizes.get("MemFree:", 0) + sizes.get("Inactive(file):", 0)
