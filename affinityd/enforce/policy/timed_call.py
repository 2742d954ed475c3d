"""Work that another user's process can hold up for ever, in threads of its own.

To read a process's environment the kernel takes the lock of its memory, which that process can have
held for ever: by a file system of its own (FUSE), or one that does not answer (NFS).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")

SECONDS = 0.5  #: for which an answer is waited for
MOST_STUCK = 8  #: threads that may wait; while there are as many, no more work is begun


class TimedCalls:
    """Begins work, and does not wait for it long."""

    def __init__(self, seconds: float = SECONDS) -> None:
        """Take how long to wait for each piece of work."""
        self._seconds = seconds
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
            return results.get(timeout=self._seconds)
        except Empty:
            self._stuck.append(thread)
            return None
