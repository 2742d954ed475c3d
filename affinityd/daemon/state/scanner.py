"""Scans the processes that use GPUs again and again, off the event loop.

A scan is swapped in whole. One that fails leaves the last one, whose age grows; one whose thread
hangs ends the daemon. What is done about a scan is done behind that: no request waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from affinityd.audit.model import Scan
from affinityd.daemon.state.background import in_background
from affinityd.daemon.state.failure_log import FailureLog
from affinityd.daemon.state.plan_service import PlanService
from affinityd.errors import FatalError, NotScannedError
from affinityd.topology.model import Topology

T = TypeVar("T")

ScanProcesses = Callable[[Topology], Scan]  #: finds what the processes do now, which takes a while

#: A scan takes at most 20 s, and what is done about it a few: a thread that takes longer hangs.
HUNG_SECONDS = 120.0


@dataclass(frozen=True, eq=False)  # to compare two would compare two machines, core by core
class Audit:
    """A scan, and the topology that it judged by."""

    topology: Topology
    scan: Scan


class LatestAudit:
    """The last audit, or why there is none."""

    def __init__(self, why_none: str) -> None:
        """Take what is said while there is none."""
        self._why_none = why_none
        self.known: Audit | None = None

    @property
    def audit(self) -> Audit:
        """The last audit. Raises NotScannedError before the first scan."""
        if self.known is None:
            raise NotScannedError(self._why_none)
        return self.known


class Scanner:
    """Scans every so many seconds, from the first reading of the topology on."""

    def __init__(
        self,
        scan: ScanProcesses,
        service: PlanService,
        latest: LatestAudit,
        *,
        every: float,
        consumers: Sequence[Callable[[Audit], None]] = (),
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """Take what scans, what has the topology, and where the last audit is kept.

        `consumers` take each audit in turn, off the event loop, before the next scan begins;
        `on_failure` counts a scan that failed.
        """
        self._scan = scan
        self._service = service
        self._latest = latest
        self._every = every
        self._consumers = consumers
        self._has_read = asyncio.Event()
        service.on_swap(self._has_read.set)
        self._failures = FailureLog(
            "a scan of the processes failed; the last one stands", count=on_failure
        )

    async def run(self) -> None:
        """Scan for ever, one scan after the other. Raises FatalError for one that hangs."""
        await self._has_read.wait()
        while True:
            began = time.monotonic()
            with self._failures.logged():
                await self._scan_once(self._service.node.topology)
            await asyncio.sleep(began + self._every - time.monotonic())

    async def _scan_once(self, topology: Topology) -> None:
        audit = Audit(topology, await _in_time(lambda: self._scan(topology)))
        self._latest.known = audit
        await _in_time(lambda: self._consume(audit))

    def _consume(self, audit: Audit) -> None:
        for consume in self._consumers:
            consume(audit)


async def _in_time(work: Callable[[], T]) -> T:
    """Do work in the background. Raises FatalError for a thread that hangs: none can be ended."""
    task = asyncio.ensure_future(in_background(work))
    done, _ = await asyncio.wait({task}, timeout=HUNG_SECONDS)
    if not done:
        raise FatalError(f"a scan of the processes has hung for {HUNG_SECONDS:g} s")
    return task.result()
