"""One log line for a failure that repeats."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


class FailureLog:
    """What failed last, of one kind of work."""

    def __init__(self, news: str, count: Callable[[], None] = lambda: None) -> None:
        """Take the log's line for a failure, and what counts one more."""
        self._news = news
        self._count = count
        self._last = ""

    @contextmanager
    def told(self) -> Iterator[None]:
        """Log what the block raises, unless it was so the last time, and go on behind it."""
        try:
            yield
            self._last = ""
        except Exception as error:
            self._count()
            if repr(error) != self._last:
                log.exception("%s", self._news)
            self._last = repr(error)
