"""When the processes are scanned. What scans is a stand-in: it hangs and fails when told to."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from affinityd.daemon.state import scanner as scanner_module
from affinityd.daemon.state.audits import Audit, PackedAudit
from affinityd.daemon.state.plan_service import PlanService
from affinityd.daemon.state.scanner import scan_regularly
from affinityd.errors import FatalError
from affinityd.topology.model import Node, Topology
from tests.support.scans import MACHINE, scan
from tests.unit.daemon.state.test_topology_watcher import SOON, until

EVERY = 0.02


class Scans:
    """A scanner, the faults of what scans and acts for it, and what came of it."""

    def __init__(self, every: float) -> None:
        self.begun: list[float] = []
        self.under_way = self.most_under_way = 0
        self.waits = False  #: whether a scan waits until it may end
        self.fault: Exception | None = None
        self.may_end, self.may_act = threading.Event(), threading.Event()
        for event in (self.may_end, self.may_act):
            event.set()
        self.latest: PackedAudit | None = None
        self.acted: list[PackedAudit] = []
        self.failures: list[None] = []
        self.service = PlanService()
        consumers = [self.keep, self.act]
        self.running = asyncio.ensure_future(
            scan_regularly(self.scan, self.service, consumers, self.failed, every=every)
        )

    def scan(self, topology: Topology) -> PackedAudit:
        assert topology is MACHINE
        self.begun.append(time.monotonic())
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.waits = not self.may_end.is_set()
        if self.waits:
            self.may_end.wait(SOON)
        self.under_way -= 1
        if self.fault is not None:
            raise self.fault
        return PackedAudit.of(Audit(topology, scan()))

    def failed(self) -> None:
        self.failures.append(None)

    def keep(self, audit: PackedAudit) -> None:
        self.latest = audit

    def act(self, audit: PackedAudit) -> None:
        self.acted.append(audit)
        self.may_act.wait(SOON)


@asynccontextmanager
async def scanning(*, every: float = EVERY, begins: bool = True) -> AsyncIterator[Scans]:
    """Yield a scanner, which begins at once."""
    scans = Scans(every)
    if begins:
        scans.service.swap(Node(MACHINE))
    try:
        yield scans
    finally:
        scans.may_end.set()
        scans.may_act.set()
        scans.running.cancel()


async def test_it_scans_again_and_again_from_the_first_reading_on() -> None:
    async with scanning(begins=False) as scans:
        await asyncio.sleep(3 * EVERY)
        assert (scans.begun, scans.latest) == ([], None)
        scans.service.swap(Node(MACHINE))
        await until(lambda: len(scans.acted) == 3)
        assert scans.latest in scans.acted


async def test_the_interval_is_from_start_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    slept, really_sleep = [0.0], asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await really_sleep(min(seconds, 0.2))

    monkeypatch.setattr(asyncio, "sleep", sleep)

    async with scanning(every=100) as scans:
        scans.may_end.clear()
        await until(lambda: len(scans.begun) == 1)
        await asyncio.sleep(0.2)  # how long the scan takes
        scans.may_end.set()
        await until(lambda: max(slept) > 1)
        assert max(slept) <= 100 - 0.2


async def test_a_scan_that_takes_long_leaves_the_last_one_and_no_other_begins_beside_it() -> None:
    async with scanning() as scans:
        await until(lambda: len(scans.acted) == 1)
        scans.may_end.clear()
        await until(lambda: scans.waits)
        last = scans.latest
        await asyncio.sleep(5 * EVERY)
        assert scans.latest is last
        scans.may_end.set()
        await until(lambda: scans.latest is not last)
        assert scans.most_under_way == 1


@pytest.mark.parametrize("what", ["may_end", "may_act"])
async def test_a_thread_that_hangs_is_the_end(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(scanner_module, "HUNG_SECONDS", 0.1)

    async with scanning() as scans:
        getattr(scans, what).clear()
        with pytest.raises(FatalError, match=r"^a scan of the processes has hung for 0\.1 s$"):
            await asyncio.wait_for(scans.running, SOON)


async def test_what_is_done_about_a_scan_holds_up_the_next_scan_alone() -> None:
    async with scanning() as scans:
        scans.may_act.clear()
        await until(lambda: len(scans.acted) == 1)
        assert scans.latest is scans.acted[0]
        await asyncio.sleep(3 * EVERY)
        assert len(scans.begun) == 1
        scans.may_act.set()
        await until(lambda: len(scans.acted) == 3)


async def test_scans_that_fail_are_counted_and_told_once_and_the_next_is_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scanning() as scans:
        await until(lambda: len(scans.acted) == 1)
        scans.fault = RuntimeError("a bug")
        await until(lambda: len(scans.failures) == 3)
        last = scans.latest
        assert last is scans.acted[-1]
        scans.fault = None
        await until(lambda: scans.latest is not last)
        assert len(scans.failures) <= 4
    (record,) = (it for it in caplog.records if it.levelname == "ERROR")
    assert record.message == "a scan of the processes failed; the last good one stays"
    assert "RuntimeError: a bug" in caplog.text
