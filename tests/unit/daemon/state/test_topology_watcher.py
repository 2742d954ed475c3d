"""When the node is read again, and what is published of it.

The machine is a stand-in here: it hangs and fails when told to. Files are real.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.config import NODE_FILE
from affinityd.daemon.state import topology_watcher
from affinityd.daemon.state.plan_service import PlanService
from affinityd.daemon.state.topology_watcher import NodePublisher, TopologyWatcher
from affinityd.errors import TreeError
from affinityd.topology.document import read_node
from affinityd.topology.model import Node, Topology
from tests.support.machines.facts import machine

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


async def test_a_port_that_goes_down_is_read_and_no_driver_is_asked_for_it() -> None:
    async with watching() as watched:
        watched.topology, watched.seen_ports = FEWER, "1: DOWN"
        await until(lambda: watched.readings == [1, 2])
        assert watched.asked == 1


async def test_a_machine_that_cannot_be_read_keeps_its_last_reading_and_is_told_once_a_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with watching() as watched:
        for online, found in (("1-223", FEWER), ("0-223", WHOLE)):
            last = watched.service.node.topology
            watched.topology, watched.seen_online = None, online
            for _request in range(5):
                await watched.watcher.refresh()
                assert watched.service.node.topology is last
            watched.topology = found
            await watched.watcher.refresh()
            assert watched.service.node.topology is found
    lines = [record.message for record in caplog.records if "could not be read" in record.message]
    assert lines == ["the machine could not be read: no machine today"] * 2


async def test_a_first_reading_that_fails_is_tried_again() -> None:
    watched = Watched()
    watched.topology = None
    async with watching(watched):
        await until(lambda: watched.asked >= 2)
        assert watched.service.known is None
        watched.topology = WHOLE
        await until(lambda: watched.service.known is not None)


@pytest.mark.parametrize(("most", "is_read"), [(SOON, True), (0.05, False)])
async def test_a_plan_waits_for_the_first_reading_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch, most: float, is_read: bool
) -> None:
    monkeypatch.setattr(topology_watcher, "FIRST_SECONDS", most)
    watched = Watched()
    watched.may_answer.clear()
    async with watching(watched):
        waiting = [asyncio.create_task(watched.watcher.first_reading()) for _ in range(100)]
        await until(lambda: watched.asked == 1)
        if is_read:
            assert not any(it.done() for it in waiting)
            watched.may_answer.set()
        await asyncio.wait_for(asyncio.gather(*waiting), SOON)
        assert (watched.service.known is not None) == is_read
        watched.may_answer.set()
        await until(lambda: watched.service.known is not None)
        await asyncio.wait_for(watched.watcher.first_reading(), SOON / 2)


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


async def test_unknown_mig_instances_make_one_reading_in_a_while() -> None:
    async with watching() as watched:
        await asyncio.gather(*(watched.watcher.seek_mig() for _ in range(10)))
        assert watched.asked == 2


FIRST = Node(machine("mi250x"))


class Published:
    """A publisher, and the file that it writes."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / NODE_FILE
        self.service = PlanService()
        self.publisher = NodePublisher(self.service, self.file)

    def begin(self, generation: int) -> None:
        """Have a reading published, soon."""
        self.service.swap(replace(FIRST, generation=generation))
        self.publisher.has_been_read.set()

    async def read(self, generation: int) -> None:
        """Have a reading published, and wait for that."""
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


async def test_a_file_that_cannot_be_written_is_told_once_and_written_with_a_later_reading(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"

    async with publishing(folder) as published:
        for _ in range(2):
            published.begin(1)
            await asyncio.sleep(0.1)
        folder.mkdir()
        await published.read(1)
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert told == [f"{folder / NODE_FILE} could not be written: No such file or directory"]


async def test_of_readings_that_come_while_a_disk_hangs_the_newest_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs cannot be taken here: the write is held up in its place."""
    may_write, written = threading.Event(), list[int]()

    def write(_path: Path, node: Node) -> None:
        may_write.wait()
        written.append(node.generation)

    monkeypatch.setattr(topology_watcher, "write_node", write)

    async with publishing(tmp_path) as published:
        for generation in range(1, 4):
            published.begin(generation)
            await asyncio.sleep(0.05)
        may_write.set()
        await until(lambda: written == [1, 3])


async def test_a_port_that_flaps_is_published_and_is_no_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    nics = (replace(FIRST.topology.nics[0], ports=()), *FIRST.topology.nics[1:])
    down = replace(FIRST, topology=replace(FIRST.topology, nics=nics), generation=2)

    async with publishing(tmp_path) as published:
        await published.read(1)
        published.service.swap(down)
        published.publisher.has_been_read.set()
        await until(lambda: read_node(published.file).generation == 2)
    (told,) = [record.message for record in caplog.records if "(generation" in record.message]
    assert told.endswith("(generation 1)")
