"""Failures of work that is done again and again: each is news once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


class Failures:
    """What failed last, of one kind of work."""

    def __init__(self, news: str) -> None:
        """Take the log's line for a failure."""
        self._news = news
        self._last = ""

    @contextmanager
    def told(self) -> Iterator[None]:
        """Log what the block raises, unless it was so the last time, and go on behind it."""
        try:
            yield
            self._last = ""
        except Exception as error:
            if repr(error) != self._last:
                log.exception("%s", self._news)
            self._last = repr(error)
