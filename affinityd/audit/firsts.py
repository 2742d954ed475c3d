"""The masks that processes had when they were first seen: before anybody pinned them from outside.

What a library chose for its thread is a part of that, and need not be of what the process has now.
"""

from __future__ import annotations

import time
from dataclasses import replace

from affinityd.audit.model import ProcessFacts
from affinityd.cpuset import CpuSet

REMEMBERED = 600.0  #: seconds without a sight of it: scans may be blind for a while


class Firsts:
    """Remembers the main thread's mask of each process."""

    def __init__(self) -> None:
        """Know of none."""
        self._masks: dict[tuple[int, int], CpuSet] = {}  # by pid and start
        self._before: dict[tuple[int, int], CpuSet] = {}
        self._turn = 0.0  # time.monotonic() when those of `_before` are forgotten

    def begin(self) -> None:
        """Forget whom nobody has seen for long."""
        now = time.monotonic()
        if now >= self._turn:
            self._before, self._masks = self._masks, {}
            self._turn = now + REMEMBERED

    def with_first(self, facts: ProcessFacts) -> ProcessFacts:
        """Return what a process is, with the mask that it had at first."""
        key = facts.pid, facts.start
        mask = self._masks.get(key) or self._before.get(key) or facts.threads[0].mask
        self._masks[key] = mask
        return replace(facts, first_mask=mask)
