"""Threads that may be starting others which do not show yet.

What a thread starts has the mask that the thread had as clone(2) began, and shows in /proc towards
its end: for fork(2) in a large process that is long after. Source: kernel/fork.c `copy_process`.
"""

from __future__ import annotations

import threading

from affinityd.linux.processes import thread_stat
from affinityd.linux.procstat import Stat

#: The states of a thread that may be in clone(2): it runs, or waits for the kernel, proc(5).
AWAKE = ("R", "D")

#: Clock ticks outside of the kernel after which a thread has left the call that it was in.
USER_TICKS = 2


class Starters:
    """The threads that may be in a clone(2) which began before they were added."""

    def __init__(self) -> None:
        self._first_seen: dict[tuple[int, int], Stat | None] = {}

    def add(self, pid: int, tid: int) -> None:
        """Add a thread of a process. The one that asks is in no clone(2)."""
        if tid != threading.get_native_id():
            self._first_seen[pid, tid] = None

    def are_left(self) -> bool:
        """Look which of them have not been seen elsewhere yet; return whether there are any."""
        now = {thread: thread_stat(*thread) for thread in self._first_seen}
        self._first_seen = {
            thread: self._first_seen[thread] or stat
            for thread, stat in now.items()
            if stat is not None and _may_be_starting(self._first_seen[thread] or stat, stat)
        }
        return bool(self._first_seen)


def _may_be_starting(first: Stat, now: Stat) -> bool:
    return now.state in AWAKE and now.user_time - first.user_time < USER_TICKS
