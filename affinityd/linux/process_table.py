"""All processes at one moment. Each may have ended since, and its pid may be reused."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from affinityd.linux.files import content
from affinityd.linux.processes import INIT, PROC, Stat, everyone


def descendants(pid: int, proc: str = PROC) -> list[Stat]:
    """Return a process's children, theirs, and so on, parents before children; no zombies.

    The calling process is not among them, nor is a process with an ended parent: it has another
    parent now.
    """
    living = (it for it in everyone(proc) if not it.is_zombie and it.number != os.getpid())
    children = _by_parent(living)
    found = children.pop(pid, [])
    for stat in found:  # which grows during the loop
        found += children.pop(stat.number, [])
    return found


def _by_parent(stats: Iterable[Stat]) -> defaultdict[int, list[Stat]]:
    children = defaultdict(list)
    for stat in stats:
        children[stat.parent].append(stat)
    return children


class ProcessTable:
    """All processes, read on first use."""

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

        Kernels with CONFIG_PROC_CHILDREN list them, proc_tid_children(5): to read every process
        costs most of a scan. One that ends during the read can hide another.
        """
        if not self._lists_children:
            return [stat.number for stat in self._children[pid]]
        lists = (content(f"{self.proc}/{pid}/task/{tid}/children") or b"" for tid in tids)
        return [int(word) for listed in lists for word in listed.split() if word.isdigit()]

    @cached_property
    def _lists_children(self) -> bool:
        return os.access(f"{self.proc}/thread-self/children", os.R_OK)

    @cached_property
    def _children(self) -> defaultdict[int, list[Stat]]:
        return _by_parent(self.by_pid.values())

    @property
    def has_all(self) -> bool:
        """Whether the first process is seen: hidepid of proc(5) hides all of root's."""
        return INIT in self.by_pid


def ancestors(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    """Yield a process, its parent, and so on, as far as they are known, by the parent of each.

    They were read one after the other, and may form a circle: each is yielded once.
    """
    met: set[int] = set()
    while pid in parents and pid not in met:
        met.add(pid)
        yield pid
        pid = parents[pid]
