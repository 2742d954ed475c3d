"""The environment with which a process was started, as far as it can be read.

To read it the kernel takes the lock of the process's memory. Its user can keep that locked for
ever: by a file system of its own (FUSE), or one that does not answer (NFS). So a thread reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Generic, TypeVar

from affinityd.audit.facts.process import ProcessFacts
from affinityd.linux.files import environment_of
from affinityd.linux.processes import cgroups_of, stat_of
from affinityd.threads import started

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

ANCESTORS = 8  #: tried for a process that has overwritten its own

SECONDS = 0.5  #: for which an answer is waited for
MOST_STUCK = 8  #: threads that may wait; while there are as many, no more work is begun


def environment(facts: ProcessFacts, root: str = "") -> Mapping[str, str] | None:
    """Return the environment of a process; None where it cannot be read.

    For a process that changes its title (setproctitle, as Ray's and vLLM's workers) that of the
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


class TimedCalls(Generic[K, T]):
    """Starts work, and waits for it only briefly: a late result is there for the next call."""

    def __init__(self) -> None:
        self._late: dict[K, Future[T]] = {}

    def result(self, key: K, work: Callable[[], T]) -> T:
        """Return the result of `work`, which raises nothing; a second call is for the same work.

        Raises TimeoutError if it takes too long, or too many calls are late already.
        """
        future, seconds = self._late.pop(key, None), 0.0
        if future is None:
            if len(self._late) >= MOST_STUCK:
                self._late = {it: late for it, late in self._late.items() if not late.done()}
            if len(self._late) >= MOST_STUCK:
                raise TimeoutError
            future, seconds = started(work), SECONDS
        try:
            return future.result(seconds)
        except FutureTimeoutError:  # Python 3.10 has one of its own
            self._late[key] = future
            raise TimeoutError from None
