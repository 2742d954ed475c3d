"""Functions that run in daemon threads: the process may end before they do."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")


def started(work: Callable[[], T]) -> Future[T]:
    """Run `work` in a thread; return its future. Raises OSError if no thread can be started."""
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # a caller that does not wait must not end the thread

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
            result.set_exception(error)

    try:
        threading.Thread(target=run, daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from None
    return result


STUCK_SECONDS = 0.5
MOST_STUCK_OF_ONE = 4  #: how many readings of one user's processes may be late at once
MOST_STUCK = 64  #: how many readings of all users' processes may be late at once


class Readings(Generic[K, T]):
    """Readings of processes that may block their readers, each in a thread.

    The kernel lets a reader wait for the lock of the memory, which the process holds while a
    page fault waits for a file system that does not answer: a dead NFS server, or a user's FUSE
    program.
    """

    def __init__(self, most_of_one: int = MOST_STUCK_OF_ONE) -> None:
        self._most_of_one = most_of_one
        #: By key: the user, and the reading that is late.
        self._late: dict[K, tuple[int | None, Future[T]]] = {}

    def result(self, key: K, read: Callable[[], T], user: int | None = None) -> T:
        """Return the result of `read`; if it is late, a later call may ask for it again.

        `user` owns the process. Raises FutureTimeoutError if the reading is late, or too many
        others are.
        """
        if key in self._late:
            _, reading = self._late.pop(key)
            seconds = 0.0
        else:
            self._late = {key: late for key, late in self._late.items() if not late[1].done()}
            users = [user for user, _ in self._late.values()]
            if len(users) >= MOST_STUCK or users.count(user) >= self._most_of_one:
                raise FutureTimeoutError
            reading = started(read)
            seconds = STUCK_SECONDS
        try:
            return reading.result(seconds)
        except FutureTimeoutError:
            self._late[key] = user, reading
            raise


class Answers(Generic[K, T]):
    """One answer for each key, each asked for once; a slow answer comes with a later call."""

    def __init__(self, ask: Callable[[K], T | None], most_late: int) -> None:
        self._ask = ask
        self._known: dict[K, T | None] = {}  #: answers by key, for the keys of the last call
        self._readings: Readings[K, T | None] = Readings(most_of_one=most_late)

    def look(self, keys: set[K]) -> dict[K, T]:
        """Return the answers by key; a key is missing if it has no answer, or none yet."""
        self._known = {key: self._known[key] for key in keys if key in self._known}
        for key in keys - self._known.keys():
            with suppress(FutureTimeoutError):
                self._known[key] = self._readings.result(key, partial(self._ask, key))
        return {key: answer for key, answer in self._known.items() if answer is not None}
