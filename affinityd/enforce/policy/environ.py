"""The environment with which a process was started, as far as it can be read.

To read it the kernel takes the lock of the process's memory, which its user can have held for ever:
by a file system of their own (FUSE), or one that does not answer (NFS). So it is read in a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import TypeVar

from affinityd.audit.model import ProcessFacts
from affinityd.linux.files import environment_of
from affinityd.linux.processes import cgroups_of, stat_of

T = TypeVar("T")

ANCESTORS = 8  #: that are asked for one that has written over its own

SECONDS = 0.5  #: for which an answer is waited for
MOST_STUCK = 8  #: threads that may wait; while there are as many, no more work is begun


def environment(facts: ProcessFacts, root: str = "") -> Mapping[str, str] | None:
    """Return the environment of a process; None where it cannot be read.

    Of one that gives itself another title (setproctitle, as Ray's and vLLM's workers) that of the
    nearest ancestor in the same cgroups counts.
    """
    proc, pid, start = f"{root}/proc", facts.pid, facts.start
    for _ in range(ANCESTORS):
        found, stat = environment_of(pid, root), stat_of(pid, proc)
        if found is None or stat is None or stat.start != start:
            return None
        if found:
            return found
        parent = stat_of(stat.parent, proc)
        if parent is None or cgroups_of(parent.number, proc) != facts.cgroups:
            return None
        pid, start = parent.number, parent.start
    return None


class TimedCalls:
    """Begins work, and does not wait for it long."""

    def __init__(self) -> None:
        self._stuck: list[threading.Thread] = []

    def result(self, work: Callable[[], T]) -> T | None:
        """Return what `work` returns, which raises nothing; None where it takes too long."""
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if len(self._stuck) >= MOST_STUCK:
            return None
        results: SimpleQueue[T] = SimpleQueue()
        thread = threading.Thread(target=lambda: results.put(work()), daemon=True)
        thread.start()
        try:
            return results.get(timeout=SECONDS)
        except Empty:
            self._stuck.append(thread)
            return None
