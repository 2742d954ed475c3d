"""When the processes are scanned; the function that scans is a stand-in."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from affinityd.daemon.state.plan_service import PlanService
from affinityd.daemon.state.scans import ScanResult, scan_regularly
from affinityd.topology.model import Node, Topology
from tests.support.scans import MACHINE
from tests.unit.daemon.state.test_topology_watcher import SOON, until

EVERY = 0.02


class Scans:
    """The scans of a machine, and their results."""

    def __init__(self, every: float) -> None:
        self.begun: list[float] = []
        self.fault: Exception | None = None
        self.may_end = threading.Event()
        self.may_end.set()
        self.results: list[ScanResult] = []
        self.failures: list[None] = []
        self.service = PlanService()
        self.running = asyncio.ensure_future(
            scan_regularly(
                self.scan,
                self.service,
                self.results.append,
                lambda: self.failures.append(None),
                every=every,
            )
        )

    def scan(self, topology: Topology) -> ScanResult:
        assert topology is MACHINE
        self.begun.append(time.monotonic())
        assert self.may_end.wait(SOON)
        if self.fault is not None:
            raise self.fault
        return ScanResult(self.begun[-1], None, b"", b"")


@asynccontextmanager
async def scanning(*, every: float = EVERY, begins: bool = True) -> AsyncIterator[Scans]:
    scans = Scans(every)
    if begins:
        scans.service.swap(Node(MACHINE))
    try:
        yield scans
    finally:
        scans.may_end.set()
        scans.running.cancel()


async def test_scans_begin_after_the_first_reading_and_repeat() -> None:
    async with scanning(begins=False) as scans:
        await asyncio.sleep(3 * EVERY)
        assert scans.begun == []
        scans.service.swap(Node(MACHINE))
        await until(lambda: len(scans.results) == 3)


async def test_scans_that_fail_are_counted_and_logged_once_and_the_next_is_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scanning() as scans:
        await until(lambda: len(scans.results) > 0)
        scans.fault = RuntimeError("a bug")
        await until(lambda: len(scans.failures) == 3)
        good = len(scans.results)
        scans.fault = None
        await until(lambda: len(scans.results) > good)
        assert len(scans.failures) <= 4
    (record,) = (it for it in caplog.records if it.levelname == "ERROR")
    assert record.message == "a scan of the processes failed; the last good one stays"
    assert "RuntimeError: a bug" in caplog.text
