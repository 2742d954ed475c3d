"""A deadline for what has none: to read a machine's files takes what the kernel takes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TypeVar

from affinityd.errors import ApplyError

T = TypeVar("T")

LEAST = 0.001  #: seconds; a timer of 0 would never ring


class TooLateError(BaseException):
    """Time is over; no Exception, so that nobody on the way takes it for his own."""


def within(seconds: float, what: Callable[[], T]) -> T:
    """Return what a function returns within so many seconds; in the main thread alone.

    Raises ApplyError where it takes longer.
    """

    def ring(_number: int, _frame: object) -> None:
        raise TooLateError

    before = signal.signal(signal.SIGALRM, ring)
    running = signal.setitimer(signal.ITIMER_REAL, max(seconds, LEAST))
    try:
        try:
            return what()
        finally:  # a timer that was running outlives execve(2), and is the command's
            signal.setitimer(signal.ITIMER_REAL, *running)
            signal.signal(signal.SIGALRM, before)
    except TooLateError:
        raise ApplyError("finding a place took too long") from None
