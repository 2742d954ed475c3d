"""A deadline for what has none: to read a machine's files takes what the kernel takes."""

from __future__ import annotations

import _socket
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from affinityd.errors import ApplyError

T = TypeVar("T")

LEAST = 0.001  #: seconds; a timer of 0 would never ring
AGAIN = 0.05  #: seconds until it rings again


class TooLateError(BaseException):
    """Time is over; no Exception, so that nobody on the way takes it for his own."""


def within(seconds: float, what: Callable[[], T]) -> T:
    """Return what a function returns within so many seconds; in the main thread alone.

    Raises ApplyError where it takes longer.
    """
    over = False

    def ring(_number: int, _frame: object) -> None:
        if not over:
            raise TooLateError

    start = time.monotonic()
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    running = signal.getitimer(signal.ITIMER_REAL)  # it outlives execve(2), and is the command's
    before = signal.signal(signal.SIGALRM, ring)
    unraisable, sys.unraisablehook = sys.unraisablehook, _swallow
    try:
        try:
            # Again and again: where an object is being collected, what is raised is swallowed.
            signal.setitimer(signal.ITIMER_REAL, max(seconds, LEAST), AGAIN)
            return what()
        finally:
            over = True
    except TooLateError:
        over = True
        raise ApplyError("finding a place took too long") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)
        sys.unraisablehook = unraisable
        if running[0]:
            left = running[0] - (time.monotonic() - start)
            signal.setitimer(signal.ITIMER_REAL, max(left, LEAST), running[1])


def _swallow(_unraisable: object) -> None:
    """Say nothing of what was swallowed."""


TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def look_up(host: str, port: str, seconds: float) -> tuple[int, Any]:
    """Return an address as socket(2) and connect(2) have it.

    Raises TimeoutError, OSError for a name that is nobody's, UnicodeError for what can be none.
    """
    found: list[tuple[int, Any]] = []
    failed: list[Exception] = []

    def look() -> None:
        try:
            family, _, _, _, address = _socket.getaddrinfo(host, port, 0, _socket.SOCK_STREAM)[0]
            found.append((family, address))
        except (OSError, UnicodeError) as error:
            failed.append(error)

    thread = threading.Thread(target=look, daemon=True)  # which holds up nobody's end
    try:
        thread.start()
    except RuntimeError as error:  # of a user who may have no more of them
        raise OSError(str(error)) from None
    thread.join(seconds)
    for trouble in failed:
        raise trouble
    if not found:
        raise TimeoutError
    return found[0]
