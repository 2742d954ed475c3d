"""When the processes are looked at. The auditor is a stand-in: it hangs and fails when told to."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from affinityd.audit.model import Scan
from affinityd.daemon.state.scanner import Audit, LatestAudit, Scanner
from affinityd.errors import NotScannedError
from affinityd.topology.model import Topology
from tests.scans import MACHINE, scan

SOON = 5.0
EVERY = 0.02


class StandIn:
    """An auditor whose faults a test sets."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.under_way = self.most_under_way = 0
        self.fault: Exception | None = None
        self.may_end = threading.Event()
        self.may_end.set()

    def scan(self, topology: Topology) -> Scan:
        assert topology is MACHINE
        self.begun.append(time.monotonic())
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.may_end.wait(SOON)
        self.under_way -= 1
        if self.fault is not None:
            raise self.fault
        return scan()


def look(
    story: Callable[[StandIn, Scanner, list[Audit]], Awaitable[None]],
    every: float = EVERY,
    then: Callable[[Audit], None] | None = None,
    on_failure: Callable[[], None] = lambda: None,
) -> None:
    """Run a story beside a scanner that looks."""

    async def run() -> None:
        stand_in, told = StandIn(), list[Audit]()
        scanner = Scanner(
            stand_in,
            lambda: MACHINE,
            every=every,
            on_scan=told.append,
            on_failure=on_failure,
            then=then,
        )
        looking = asyncio.create_task(scanner.run())
        try:
            await story(stand_in, scanner, told)
        finally:
            stand_in.may_end.set()
            looking.cancel()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.002)


def test_it_looks_again_and_again_from_the_first_reading_on_and_tells_of_each_scan() -> None:
    async def story(stand_in: StandIn, scanner: Scanner, told: list[Audit]) -> None:
        await asyncio.sleep(3 * EVERY)
        assert (stand_in.begun, scanner.known) == ([], None)
        with pytest.raises(NotScannedError, match="not been looked at yet; try again"):
            _ = scanner.audit
        scanner.want_first()
        await until(lambda: len(told) == 3)
        assert scanner.audit in told
        assert scanner.audit.topology is MACHINE

    look(story)


def test_the_interval_is_from_start_to_start() -> None:
    async def story(stand_in: StandIn, scanner: Scanner, _told: list[Audit]) -> None:
        stand_in.may_end.clear()
        scanner.want_first()
        await until(lambda: len(stand_in.begun) == 1)
        await asyncio.sleep(0.5)  # how long the scan takes
        stand_in.may_end.set()
        await until(lambda: len(stand_in.begun) == 2)
        assert 0.95 <= stand_in.begun[1] - stand_in.begun[0] < 1.45

    look(story, every=1.0)


def test_a_scan_that_hangs_leaves_the_last_one_and_no_other_begins_beside_it() -> None:
    async def story(stand_in: StandIn, scanner: Scanner, told: list[Audit]) -> None:
        scanner.want_first()
        await until(lambda: len(told) == 1)
        stand_in.may_end.clear()
        await until(lambda: stand_in.under_way == 1)
        last = scanner.known
        await asyncio.sleep(5 * EVERY)
        assert scanner.known is last
        stand_in.may_end.set()
        await until(lambda: scanner.known is not last)
        assert stand_in.most_under_way == 1

    look(story)


def test_a_scan_that_fails_is_told_once_and_the_next_is_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(stand_in: StandIn, scanner: Scanner, told: list[Audit]) -> None:
        scanner.want_first()
        await until(lambda: len(told) == 1)
        last = scanner.known
        stand_in.fault = RuntimeError("a bug")
        tried = len(stand_in.begun)
        await until(lambda: len(stand_in.begun) >= tried + 3)
        assert scanner.known is told[-1]
        stand_in.fault = None
        await until(lambda: scanner.known is not last)

    with caplog.at_level(logging.ERROR):
        look(story)
    (record,) = caplog.records
    assert record.message == "a scan of the processes failed; the last one stands"
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "a bug"


def test_what_is_done_about_a_scan_keeps_nobody_waiting_for_it_but_the_next_scan() -> None:
    acted, may_end = list[Audit](), threading.Event()

    def act(audit: Audit) -> None:
        acted.append(audit)
        may_end.wait(SOON)

    async def story(stand_in: StandIn, scanner: Scanner, told: list[Audit]) -> None:
        scanner.want_first()
        await until(lambda: len(acted) == 1)
        assert scanner.known is acted[0]
        await asyncio.sleep(3 * EVERY)
        assert len(stand_in.begun) == 1
        may_end.set()
        await until(lambda: len(acted) == 3)
        assert acted == told[:3]

    look(story, then=act)


def test_about_a_scan_that_fails_nothing_is_done() -> None:
    acted = list[Audit]()

    async def story(stand_in: StandIn, scanner: Scanner, told: list[Audit]) -> None:
        stand_in.fault = RuntimeError("a bug")
        scanner.want_first()
        await until(lambda: len(stand_in.begun) == 3)
        assert (acted, told) == ([], [])

    look(story, then=acted.append)


def test_where_nobody_looks_the_reason_is_told() -> None:
    audits = LatestAudit("a replayed machine has no processes to look at")
    assert audits.known is None
    with pytest.raises(NotScannedError, match=r"^a replayed machine has no"):
        _ = audits.audit


def test_every_scan_that_fails_is_counted_though_it_is_news_once() -> None:
    failures = list[None]()

    async def story(stand_in: StandIn, scanner: Scanner, told: list[Audit]) -> None:
        stand_in.fault = OSError("no /proc today")
        scanner.want_first()
        await until(lambda: len(failures) == 3)
        stand_in.fault = None
        await until(lambda: len(told) == 2)
        counted = len(failures)
        await until(lambda: len(told) == 4)
        assert len(failures) == counted

    look(story, on_failure=lambda: failures.append(None))
