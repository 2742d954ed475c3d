"""Two things measured in turn, in one run: what counts is how often one goes into the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles


@dataclass(frozen=True)
class Ratio:
    """A row of the table: ours by a peer's, round by round."""

    measured: str  #: of affinityd
    peer: str
    goal: str  #: like "≤ 1.3"
    rounds: Sequence[float] = ()
    lack: str | None = None  #: why it was not measured; then there are no rounds

    @property
    def middle(self) -> float:
        return median(self.rounds)

    @property
    def spread(self) -> tuple[float, float]:
        """The first and the last quartile."""
        first, _, last = quantiles(self.rounds, n=4) if len(self.rounds) > 1 else [self.middle] * 3
        return first, last

    @property
    def is_met(self) -> bool:
        """Whether the goal is reached; what was not measured misses none."""
        if self.lack is not None:
            return True
        sign, limit = self.goal.split()
        return self.middle <= float(limit) if sign == "≤" else self.middle >= float(limit)

    def __str__(self) -> str:
        if self.lack is not None:
            return f"not measured: {self.lack}   {self.measured} / {self.peer}"
        first, last = self.spread
        verdict = "" if self.is_met else "   missed"
        figures = f"{self.middle:6.2f}  ({first:.2f} to {last:.2f}, goal {self.goal})"
        return f"{figures}   {self.measured} / {self.peer}{verdict}"
