"""When the node is read again and scanned, what is published of it, and work off the event loop.

The machine and what scans it are stand-ins here: they hang and fail when told to. Files are real.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.config import NODE_FILE
from affinityd.daemon.state import topology_watcher
from affinityd.daemon.state.background import SingleFlight
from affinityd.daemon.state.plan_service import PlanService
from affinityd.daemon.state.scans import ScanResult, scan_regularly
from affinityd.daemon.state.topology_watcher import NodePublisher, TopologyWatcher
from affinityd.errors import TreeError
from affinityd.topology.document import read_node
from affinityd.topology.model import Node, Topology
from tests.support.machines.facts import machine
from tests.support.scans import MACHINE

SOON = 5.0
WHOLE = machine("dgx-h100")
FEWER = replace(WHOLE, cores=WHOLE.cores[1:])


class StandIn:
    """A machine whose next reading, sentinels and faults a test sets."""

    def __init__(self) -> None:
        self.topology: Topology | None = WHOLE
        self.seen_online = "0-223"
        self.seen_drivers = "550"
        self.seen_ports = "4: ACTIVE"
        self.silent = False
        self.asked = 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def query_drivers(self) -> None:
        self.asked += 1
        self.may_answer.wait(SOON)

    def read(self) -> Topology:
        if self.topology is None:
            raise TreeError("no machine today")
        return self.topology

    def online(self) -> str:
        return self.seen_online

    def drivers(self) -> str:
        return self.seen_drivers

    def ports(self) -> str:
        return self.seen_ports

    def lacks_nvml(self) -> bool:
        return self.silent


class Watched(StandIn):
    """A stand-in, what watches it, and the generations that were read."""

    def __init__(self) -> None:
        super().__init__()
        self.service = PlanService()
        self.readings: list[int] = []
        self.watcher = TopologyWatcher(
            self.service,
            self,
            reserved=frozenset({0}),
            on_read=lambda: self.readings.append(self.service.node.generation),
        )


@asynccontextmanager
async def watching(prepared: Watched | None = None) -> AsyncIterator[Watched]:
    """Yield what is watched, from the first reading on; one that was prepared: at once."""
    watched = prepared or Watched()
    task = asyncio.create_task(watched.watcher.watch())
    try:
        if prepared is None:
            await until(lambda: len(watched.readings) == 1)
        yield watched
    finally:
        watched.may_answer.set()
        task.cancel()


async def until(condition: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.002)

    await asyncio.wait_for(wait(), SOON)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_watcher, "DRIVER_CHECK_SECONDS", 0.02)


async def test_a_reading_has_the_drivers_answers_and_a_difference_is_a_generation() -> None:
    async with watching() as watched:
        assert (watched.asked, watched.readings) == (1, [1])
        assert watched.service.node.reserved == frozenset({0})
        watched.watcher.want_reading()
        await until(lambda: watched.readings == [1, 1])
        assert watched.asked == 2
        watched.topology = FEWER
        watched.watcher.want_reading()
        await until(lambda: watched.readings == [1, 1, 2])


async def test_a_cpu_that_goes_is_read_once_and_does_not_wait_for_a_driver_that_hangs() -> None:
    async with watching() as watched:
        watched.may_answer.clear()
        watched.watcher.want_reading()
        await until(lambda: watched.asked == 2)
        watched.topology, watched.seen_online = FEWER, "1-223"
        refreshing = asyncio.gather(*(watched.watcher.refresh() for _ in range(20)))
        await asyncio.wait_for(refreshing, SOON / 2)
        assert watched.readings == [1, 2]


async def test_a_driver_that_changes_is_asked_and_one_that_is_silent_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with watching() as watched:
        watched.seen_drivers = "560"
        await until(lambda: watched.asked == 2)
        for silent, seconds in ((True, 30.0), (False, 0.05)):
            watched.silent = silent
            monkeypatch.setattr(topology_watcher, "DRIVER_RETRY_SECONDS", seconds)
            await asyncio.sleep(0.15)
            assert watched.asked == 2
        watched.silent = True
        await until(lambda: watched.asked > 2)


FIRST = Node(machine("mi250x"))


class Published:
    """A publisher, and the file that it writes."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / NODE_FILE
        self.service = PlanService()
        self.publisher = NodePublisher(self.service, self.file)

    def begin(self, generation: int) -> None:
        self.service.swap(replace(FIRST, generation=generation))
        self.publisher.has_been_read.set()

    async def read(self, generation: int) -> None:
        self.begin(generation)
        await until(self.file.is_file)
        await until(lambda: read_node(self.file).generation == generation)


@asynccontextmanager
async def publishing(folder: Path) -> AsyncIterator[Published]:
    published = Published(folder)
    running = asyncio.create_task(published.publisher.run())
    yield published
    running.cancel()


async def test_every_reading_is_published_and_what_was_left_half_written_is_removed(
    tmp_path: Path,
) -> None:
    left = tmp_path / ".node.json.a1b2c3d4"
    left.write_text("{")

    async with publishing(tmp_path) as published:
        await until(lambda: not left.exists())
        await published.read(1)
        await published.read(2)
        published.file.unlink()
        await published.read(2)  # which is no news


class Work:
    """Work that a test holds up; it counts what is done, and what is done at once."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.at_once = self.most_at_once = 0
        self.may_end = threading.Event()

    def __call__(self, question: str) -> str:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        assert self.may_end.wait(SOON)
        self.at_once -= 1
        self.done.append(question)
        if question == "bad":
            raise ValueError(question)
        return f"{question}!"


async def test_equal_questions_share_an_answer_and_others_come_one_after_the_other() -> None:
    work = Work()
    ask: SingleFlight[str, str] = SingleFlight(work)
    asking = [asyncio.create_task(ask(question)) for question in ("a", "a", "bad", "c", "bad")]
    await asyncio.sleep(0)
    asking[0].cancel()  # a caller that leaves early leaves the others their answer
    await asyncio.sleep(0.05)
    work.may_end.set()
    _, *answers = await asyncio.gather(*asking, return_exceptions=True)
    assert [str(it) for it in answers] == ["a!", "bad", "c!", "bad"]
    assert asking[0].cancelled()
    assert (work.done, work.most_at_once) == (["a", "bad", "c"], 1)
    assert await ask("a") == "a!"
    with pytest.raises(ValueError, match="bad"):
        await ask("bad")
    assert work.done == ["a", "bad", "c", "a", "bad"]


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
