"""A deadline for what has none: to read a machine's files takes what the kernel takes."""

from __future__ import annotations

import signal
import time
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

    start = time.monotonic()
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    running = signal.getitimer(signal.ITIMER_REAL)  # it outlives execve(2), and is the command's
    before = signal.signal(signal.SIGALRM, ring)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, max(seconds, LEAST))
            return what()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except TooLateError:
        raise ApplyError("finding a place took too long") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)
        if running[0]:
            left = running[0] - (time.monotonic() - start)
            signal.setitimer(signal.ITIMER_REAL, max(left, LEAST), running[1])
