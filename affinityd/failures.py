"""Failures of work that is done again and again: each is news once, and counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, TypeVar

log = logging.getLogger(__name__)


class Failures:
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


class Report(Protocol):
    """What NVML said."""

    @property
    def gpus(self) -> object | None:
        """None: nothing."""


R = TypeVar("R", bound=Report)


class Unanswered:
    """How often NVML did not answer, by what it was asked for."""

    def __init__(self, *questions: str) -> None:
        """Begin each question with 0."""
        self._counts = dict.fromkeys(questions, 0)

    @property
    def counts(self) -> Mapping[str, int]:
        """Question → how often it was not answered."""
        return self._counts

    def counting(self, question: str, ask: Callable[[float], R]) -> Callable[[float], R]:
        """Return what asks as `ask` does, and counts each report that says nothing."""

        def asking(timeout: float) -> R:
            report = ask(timeout)
            self._counts[question] += report.gpus is None
            return report

        return asking
