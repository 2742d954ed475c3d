"""What the daemon knows of its node, and how it works outside the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from affinityd.errors import FatalError
from affinityd.threads import started

log = logging.getLogger(__name__)

T = TypeVar("T")


async def in_background(work: Callable[[], T]) -> T:
    """Return the result of `work`, or raise its exception, from a thread of its own.

    Unlike asyncio.to_thread's, this thread does not delay the process's end: a driver may block the
    thread for longer than a shutdown may take.
    """
    return await asyncio.wrap_future(started(work))


def until_multiple(seconds: float) -> float:
    """Return the seconds to the next multiple of `seconds` in loop time: waits end together."""
    return seconds - asyncio.get_running_loop().time() % seconds


async def pause(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most `seconds`.

    Before Python 3.12 asyncio.wait_for loses a cancellation at the moment of the event.
    """
    coming = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({coming}, timeout=seconds)
    finally:
        coming.cancel()


class FailureLog:
    """Logs the failures of one kind of work; equal failures in a row are logged once."""

    def __init__(
        self,
        message: str,
        *,
        expected: tuple[type[Exception], ...] = (),
        count: Callable[[], None] | None = None,
    ) -> None:
        """Take the message, the errors that are no bugs, and the counter of failures."""
        self._message = message
        self._expected = expected
        self._count = count
        self._last = ""

    @contextmanager
    def logged(self) -> Iterator[None]:
        """Log an exception of the block, and continue after it. Raises only FatalError.

        The log has the reason of an expected error, and the traceback of any other.
        """
        try:
            yield
        except FatalError:
            raise
        except Exception as error:
            if self._count is not None:
                self._count()
            reason = str(error)
            if isinstance(error, OSError) and error.strerror:
                reason = error.strerror
            last = self._last
            self._last = f"{type(error)} {reason}"
            if last == self._last:
                return
            if isinstance(error, self._expected):
                log.warning("%s: %s", self._message, reason)
            else:
                log.exception("%s", self._message)
        else:
            self.forget()

    def forget(self) -> None:
        """Log the next failure even if it equals the last one."""
        self._last = ""
