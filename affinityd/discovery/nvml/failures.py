"""How often NVML did not answer: for the daemon's metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from affinityd.discovery.nvml.report import NvmlReport, ProcessReport

R = TypeVar("R", NvmlReport, ProcessReport)


class NvmlFailures:
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
