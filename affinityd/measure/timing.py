"""The time that an action takes: the median of a tenth of a second of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

SECONDS = 0.1  #: that a figure may take, unless one action takes longer


def median_seconds(
    action: Callable[[], object], before: Callable[[], object] | None = None
) -> float:
    """Return the median time of an action; `before` precedes each, and is not timed."""
    took: list[float] = []
    end = time.perf_counter() + SECONDS
    while not took or time.perf_counter() < end:
        if before is not None:
            before()
        began = time.perf_counter()
        action()
        took.append(time.perf_counter() - began)
    return median(took)
