"""Looks at the processes that use GPUs again and again, off the event loop.

A scan is swapped in whole. One that hangs, or fails, leaves the last one, whose age grows. What is
done about a scan is done behind that: nobody who asks for it waits for that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from affinityd.audit.model import Scan
from affinityd.daemon.state.background import in_background
from affinityd.daemon.state.failure_log import FailureLog
from affinityd.errors import NotScannedError
from affinityd.topology.model import Topology


class Auditor(Protocol):
    """Who looks."""

    def scan(self, topology: Topology) -> Scan:
        """Return what the processes do now; this takes a while."""


@dataclass(frozen=True, eq=False)  # to compare two would compare two machines, core by core
class Audit:
    """A scan, and the topology that it judged by."""

    topology: Topology
    scan: Scan


class LatestAudit:
    """What was seen last; by itself: of a daemon that never looks."""

    def __init__(self, why_none: str) -> None:
        """Take what is said while there is none."""
        self._why_none = why_none
        self._last: Audit | None = None

    @property
    def known(self) -> Audit | None:
        """The last audit; None before the first scan."""
        return self._last

    @property
    def audit(self) -> Audit:
        """The last audit. Raises NotScannedError before the first scan."""
        if self._last is None:
            raise NotScannedError(self._why_none)
        return self._last

    async def run(self) -> None:
        """Look for ever; here: never."""
        await asyncio.Event().wait()


class Scanner(LatestAudit):
    """Looks every so many seconds, from the first reading of the topology on."""

    def __init__(
        self,
        auditor: Auditor,
        topology: Callable[[], Topology],
        *,
        every: float,
        on_scan: Callable[[Audit], None],
        on_failure: Callable[[], None] = lambda: None,
        then: Callable[[Audit], None] | None = None,
    ) -> None:
        """Take who looks, on what, and who else is told of a scan, off the event loop.

        `on_failure` counts a scan that failed.
        `then` acts on it, there as well, before the next scan begins.
        """
        super().__init__("the processes have not been looked at yet; try again in a moment")
        self._auditor = auditor
        self._topology = topology
        self._every = every
        self._on_scan = on_scan
        self._then = then
        self._read = asyncio.Event()
        self._failures = FailureLog(
            "a scan of the processes failed; the last one stands", on_failure
        )

    def want_first(self) -> None:
        """Begin, now that the topology has been read."""
        self._read.set()

    async def run(self) -> None:
        """Look for ever, one scan after the other."""
        await self._read.wait()
        while True:
            began = time.monotonic()
            await self._scan(self._topology())
            await asyncio.sleep(began + self._every - time.monotonic())

    async def _scan(self, topology: Topology) -> None:
        with self._failures.told():
            audit = self._last = await in_background(lambda: self._look(topology))
            if (then := self._then) is not None:
                await in_background(lambda: then(audit))

    def _look(self, topology: Topology) -> Audit:
        audit = Audit(topology, self._auditor.scan(topology))
        self._on_scan(audit)
        return audit
