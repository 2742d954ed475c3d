"""One log line for a failure that repeats."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from affinityd.errors import FatalError

log = logging.getLogger(__name__)


class FailureLog:
    """Logs what fails, of one kind of work, once as long as it fails in the same way."""

    def __init__(self, message: str, count: Callable[[], None] = lambda: None) -> None:
        """Take the log's line for a failure, and what counts one more."""
        self._message = message
        self._count = count
        self._last = ""

    @contextmanager
    def expecting(self, *kinds: type[Exception]) -> Iterator[None]:
        """Go on behind the block where it raises one of these: a warning that says why."""
        try:
            yield
        except kinds as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            if self._is_news(why):
                log.warning("%s: %s", self._message, why)
        else:
            self._last = ""

    @contextmanager
    def expecting_anything(self) -> Iterator[None]:
        """Go on behind the block whatever it raises but FatalError: it is logged as a bug is."""
        try:
            yield
        except FatalError:
            raise
        except Exception as error:
            self._count()
            if self._is_news(repr(error)):
                log.exception("%s", self._message)
        else:
            self._last = ""

    def _is_news(self, failure: str) -> bool:
        last, self._last = self._last, failure
        return failure != last
