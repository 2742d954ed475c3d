"""What is published of a node, and when. Real files."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.daemon.state.node_publisher import NodePublisher
from affinityd.daemon.state.plan_service import PlanService
from affinityd.topology import node_file
from affinityd.topology.model import Node
from tests.support.machines.facts import machine
from tests.unit.daemon.state.test_topology_watcher import until

FIRST = Node(machine("mi250x"))


class Published:
    """A publisher, and the file that it writes."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / node_file.NAME
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
        await until(lambda: node_file.read(self.file).generation == generation)


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
    assert told == [f"{folder / node_file.NAME} could not be written: No such file or directory"]


async def test_of_readings_that_come_while_a_disk_hangs_the_newest_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs cannot be taken here: the write is held up in its place."""
    may_write, written = threading.Event(), list[int]()

    def write(_path: Path, node: Node) -> None:
        may_write.wait()
        written.append(node.generation)

    monkeypatch.setattr(node_file, "write", write)

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
        await until(lambda: node_file.read(published.file).generation == 2)
    (told,) = [record.message for record in caplog.records if "(generation" in record.message]
    assert told.endswith("(generation 1)")
