"""Scans the processes that use GPUs at an interval, outside the event loop.

A scan is swapped in whole. One that fails leaves the last one, whose age grows; one whose thread
hangs ends the daemon. The work on a scan's result comes after that: no request waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from affinityd.daemon.state.audits import PackedAudit
from affinityd.daemon.state.background import FailureLog, in_background
from affinityd.daemon.state.plan_service import PlanService
from affinityd.errors import FatalError
from affinityd.topology.model import Topology

ScanProcesses = Callable[[Topology], PackedAudit]  #: scans the processes, which takes a while

#: A scan takes at most 20 s, and the work on it a few: a thread that takes longer hangs.
HUNG_SECONDS = 120.0


async def scan_regularly(
    scan: ScanProcesses,
    service: PlanService,
    consumers: Sequence[Callable[[PackedAudit], None]],
    on_failure: Callable[[], None],
    *,
    every: float,
) -> None:
    """Scan every so many seconds, from the first reading of the topology on, for ever.

    `consumers` take each audit in turn, before the next scan begins; `on_failure` counts a scan
    that failed. Raises FatalError for one that hangs: no thread can be ended.
    """

    def scan_once() -> None:
        audit = scan(service.node.topology)
        for consume in consumers:
            consume(audit)

    failures = FailureLog(
        "a scan of the processes failed; the last good one stays", count=on_failure
    )
    await service.has_read.wait()
    while True:
        began = time.monotonic()
        with failures.logged():
            task = asyncio.ensure_future(in_background(scan_once))
            done, _ = await asyncio.wait({task}, timeout=HUNG_SECONDS)
            if not done:
                raise FatalError(f"a scan of the processes has hung for {HUNG_SECONDS:g} s")
            task.result()
        await asyncio.sleep(began + every - time.monotonic())
