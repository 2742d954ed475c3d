"""One log line for a failure that repeats."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from affinityd.errors import FatalError

log = logging.getLogger(__name__)


class FailureLog:
    """Logs what fails, of one kind of work, once as long as it fails in the same way."""

    def __init__(
        self,
        message: str,
        *,
        expected: tuple[type[Exception], ...] = (),
        count: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the log's line, the errors that are no bugs, and what counts one more failure."""
        self._message = message
        self._expected = expected
        self._count = count
        self._last = ""

    @contextmanager
    def logged(self) -> Iterator[None]:
        """Log what the block raises, and go on behind it. Raises FatalError alone.

        Of an expected error the log has the reason, of another one the traceback.
        """
        try:
            yield
        except FatalError:
            raise
        except Exception as error:
            self._count()
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            last, self._last = self._last, f"{type(error)} {reason}"
            if last == self._last:
                return
            if isinstance(error, self._expected):
                log.warning("%s: %s", self._message, reason)
            else:
                log.exception("%s", self._message)
        else:
            self._last = ""
