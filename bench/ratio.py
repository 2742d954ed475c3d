"""Measures affinityd and a peer in turn, in one run; the result is the ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles


@dataclass(frozen=True)
class Ratio:
    """A row of the table: affinityd's value divided by a peer's, for each round."""

    measured: str  #: what is measured of affinityd
    peer: str
    most: float  #: the goal: the largest ratio that is good
    rounds: Sequence[float]

    @property
    def middle(self) -> float:
        return median(self.rounds)

    @property
    def is_met(self) -> bool:
        return self.middle <= self.most

    def __str__(self) -> str:
        """Return the row."""
        first, _, last = quantiles(self.rounds, n=4) if len(self.rounds) > 1 else [self.middle] * 3
        figures = f"{self.middle:.2f} | {first:.2f} to {last:.2f} | ≤ {self.most:g}"
        return f"| {self.measured} | {self.peer} | {figures} | {'' if self.is_met else 'missed'} |"
