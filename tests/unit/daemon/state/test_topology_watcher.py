"""When the node is read again, published and scanned.

Machine and scans are stand-ins, which hang and fail when told to. Files are real.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.config import NODE_FILE
from affinityd.config.settings import Settings
from affinityd.daemon.state import topology_watcher
from affinityd.daemon.state.scans import scan_regularly
from affinityd.daemon.state.topology_watcher import KnownNode, TopologyWatcher
from affinityd.discovery.machine import Machine
from affinityd.errors import FailingFileError, NotReadyError
from affinityd.topology.document import read_node
from affinityd.topology.model import Node, Topology
from tests.support.machines.facts import machine
from tests.support.scans import MACHINE

SOON = 5.0
WHOLE = machine("dgx-h100")
FEWER = replace(WHOLE, cores=WHOLE.cores[1:])


class StandIn(Machine):
    """A machine; a test sets its next reading, its sentinels and its faults."""

    def __init__(self, folder: Path) -> None:
        self.online_file = f"{folder}/online"
        self.set_online("0-223")
        self.topology = WHOLE
        self.failing = ""  # a file that cannot be read
        self.passing: list[Topology] = []  # readings that come before `topology`, once each
        self.seen_drivers = "550"
        self.seen_ports = (("mlx5_0", True),)
        self.silent = False
        self.asked = self.read_times = 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def set_online(self, cpus: str) -> None:
        Path(str(self.online_file)).write_text(cpus)

    def query_drivers(self, _timeout: float = 0) -> None:
        self.asked += 1
        self.may_answer.wait(SOON)

    def read(self) -> Topology:
        self.read_times += 1
        if self.failing:
            raise FailingFileError(self.failing)
        return self.passing.pop() if self.passing else self.topology

    def drivers(self) -> tuple[str]:
        return (self.seen_drivers,)

    def ports(self) -> tuple[tuple[str, bool], ...]:
        return self.seen_ports

    def lacks_nvml(self) -> bool:
        return self.silent


class Watched(StandIn):
    """A stand-in, its watcher, and the file that the watcher publishes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        settings = Settings(socket=f"{folder}/s", reserved_cpus=frozenset({0}))
        self.watcher = TopologyWatcher(self, settings)
        self.file = folder / NODE_FILE

    async def is_published(self, generation: int) -> None:
        await until(self.file.is_file)
        await until(lambda: read_node(self.file).generation == generation)


@asynccontextmanager
async def watching(folder: Path) -> AsyncIterator[Watched]:
    """Yield a watched stand-in, from the first reading on."""
    watched = Watched(folder)
    (folder / ".node.json.a1b2c3d4").write_text("{")  # left by a daemon that was killed
    task = asyncio.create_task(watched.watcher.watch())
    await watched.is_published(1)
    yield watched
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


async def test_a_reading_includes_drivers_answers_and_a_change_is_published_as_a_generation(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path) as watched:
        assert (watched.asked, watched.read_times) == (1, 1)
        assert watched.watcher.node.reserved == frozenset({0})
        assert [*watched.file.parent.glob(".node.json.*")] == []
        watched.file.unlink()
        watched.watcher.want_reading()
        await watched.is_published(1)
        assert (watched.asked, watched.read_times) == (2, 2)
        watched.topology = FEWER
        watched.watcher.want_reading()
        await watched.is_published(2)


async def test_errors_before_the_first_reading_name_the_file_that_fails(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    with pytest.raises(NotReadyError, match=r"^the machine has not been read yet; try again"):
        _ = watched.watcher.node
    watched.failing = "/sys/x: Input/output error"
    task = asyncio.create_task(watched.watcher.watch())
    await until(lambda: watched.read_times > 1)
    with pytest.raises(NotReadyError, match=r"^/sys/x: Input/output error; try again"):
        _ = watched.watcher.node
    watched.failing = ""
    await watched.is_published(1)
    task.cancel()


async def test_a_difference_in_only_one_reading_does_not_count(tmp_path: Path) -> None:
    async with watching(tmp_path) as watched:
        watched.passing = [FEWER]
        watched.watcher.want_reading()
        await until(lambda: watched.read_times >= 3)
        await asyncio.sleep(0.05)
        assert watched.watcher.node.generation == 1


async def test_a_fact_that_differs_at_each_reading_keeps_its_last_value(tmp_path: Path) -> None:
    """A flapping port is such a fact."""
    other = replace(FEWER, name="other")
    async with watching(tmp_path) as watched:
        watched.passing = [other, FEWER, other, FEWER]
        watched.topology = FEWER
        watched.watcher.want_reading()
        await watched.is_published(2)
        assert (watched.watcher.node.topology, watched.asked) == (FEWER, 2)


async def test_cpus_that_go_offline_are_read_once_without_waiting_for_a_hanging_driver(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path) as watched:
        watched.may_answer.clear()
        watched.watcher.want_reading()
        await until(lambda: watched.asked == 2)
        watched.topology = FEWER
        watched.set_online("1-223")
        refreshing = asyncio.gather(*(watched.watcher.refresh() for _ in range(20)))
        await asyncio.wait_for(refreshing, SOON / 2)
        assert (watched.read_times, watched.watcher.node.generation) == (3, 2)


async def test_a_changed_driver_is_queried_and_a_silent_driver_is_queried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(tmp_path) as watched:
        watched.seen_drivers = "560"
        await until(lambda: watched.asked == 2)
        for silent, seconds in ((True, 30.0), (False, 0.05)):
            watched.silent = silent
            monkeypatch.setattr(topology_watcher, "DRIVER_RETRY_SECONDS", seconds)
            await asyncio.sleep(0.15)
            assert watched.asked == 2
        watched.silent = True
        await until(lambda: watched.asked > 2)


async def test_a_user_who_names_unknown_mig_instances_does_not_delay_other_users(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path) as watched:
        before = watched.asked
        for user, readings in ((1, 1), (1, 1), (None, 2), (2, 3), (1, 3)):
            await watched.watcher.seek_mig(user)
            assert watched.asked - before == readings


async def test_scans_start_after_the_first_reading_and_go_on_after_a_lack_of_threads() -> None:
    known, scans = KnownNode(), list[Topology]()
    scanning = asyncio.create_task(scan_regularly(scans.append, known, every=0.02))
    await asyncio.sleep(0.06)
    assert scans == []
    known.known = Node(MACHINE)
    known.has_read.set()
    await until(lambda: len(scans) > 1)
    threading.stack_size(2**50)  # more bytes than exist: no thread starts
    await asyncio.sleep(0.06)
    threading.stack_size(0)
    before = len(scans)
    await until(lambda: len(scans) > before)
    scanning.cancel()
