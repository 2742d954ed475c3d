"""When the node is read anew. The machine is a stand-in here: it hangs and fails when told to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from affinityd.daemon.state import topology_watcher
from affinityd.daemon.state.plan_service import PlanService
from affinityd.daemon.state.topology_watcher import TopologyWatcher
from affinityd.errors import TreeError
from affinityd.topology.model import Topology
from tests.support.machines.facts import machine

SOON = 5.0


class StandIn:
    """A machine whose next reading, sentinels and faults a test sets."""

    def __init__(self) -> None:
        self.topology: Topology | None = machine("dgx-h100")
        self.seen_online = "0-223"
        self.seen_drivers = "550"
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

    def lacks_nvml(self) -> bool:
        return self.silent

    def lose_a_core(self, online: str) -> None:
        """Have the next reading find a core less."""
        assert self.topology is not None
        self.topology = replace(self.topology, cores=self.topology.cores[1:])
        self.seen_online = online


class Watched:
    """A stand-in, what watches it, and the generations that were read."""

    def __init__(self) -> None:
        self.machine = StandIn()
        self.service = PlanService()
        self.readings: list[int] = []
        self.watcher = TopologyWatcher(
            self.service,
            self.machine,
            reserved=frozenset({0}),
            on_read=lambda: self.readings.append(self.service.node.generation),
        )


Story = Callable[[Watched], Awaitable[None]]


def watch(story: Story, *, prepare: Callable[[StandIn], object] = lambda _: None) -> None:
    """Run a story beside a watcher of a machine that was prepared."""

    async def run() -> None:
        watched = Watched()
        prepare(watched.machine)
        watching = asyncio.create_task(watched.watcher.watch())
        try:
            await story(watched)
        finally:
            watched.machine.may_answer.set()
            watching.cancel()

    asyncio.run(run())


def watch_read(story: Story) -> None:
    """Run a story from the first reading on."""

    async def then(watched: Watched) -> None:
        await until(lambda: len(watched.readings) == 1)
        await story(watched)

    watch(then)


async def until(condition: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.005)

    await asyncio.wait_for(wait(), SOON)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_watcher, "DRIVER_CHECK_SECONDS", 0.02)


def test_the_first_reading_has_the_drivers_answers_and_the_reserved_cpus() -> None:
    async def story(watched: Watched) -> None:
        assert watched.machine.asked == 1
        assert (watched.readings, watched.service.node.reserved) == ([1], frozenset({0}))

    watch_read(story)


def test_a_cpu_that_goes_does_not_wait_for_a_driver_that_hangs() -> None:
    async def story(watched: Watched) -> None:
        watched.machine.may_answer.clear()
        watched.watcher.want_reading()
        await until(lambda: watched.machine.asked == 2)
        watched.machine.lose_a_core("1-223")
        await asyncio.wait_for(watched.watcher.refresh(), 1)
        assert watched.service.node.generation == 2

    watch_read(story)


def test_many_requests_that_notice_one_change_read_it_once() -> None:
    async def story(watched: Watched) -> None:
        watched.machine.lose_a_core("1-223")
        await asyncio.gather(*(watched.watcher.refresh() for _ in range(20)))
        assert watched.readings == [1, 2]
        assert watched.watcher.generation() == 2

    watch_read(story)


def test_a_reading_without_a_difference_is_no_generation() -> None:
    async def story(watched: Watched) -> None:
        watched.watcher.want_reading()
        await until(lambda: watched.readings == [1, 1])
        assert watched.machine.asked == 2

    watch_read(story)


def test_a_machine_that_cannot_be_read_keeps_its_last_reading_and_is_told_once_a_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(watched: Watched) -> None:
        for online in ("1-223", "2-223"):
            last = watched.service.node.topology
            watched.machine.lose_a_core(online)
            found, watched.machine.topology = watched.machine.topology, None
            for _request in range(5):
                await watched.watcher.refresh()
                assert watched.service.node.topology is last
                assert watched.watcher.generation() is None
            watched.machine.topology = found
            await watched.watcher.refresh()
            assert watched.service.node.topology is found

    watch_read(story)
    lines = [record.message for record in caplog.records if "could not be read" in record.message]
    assert lines == ["the machine could not be read: no machine today"] * 2


def test_a_first_reading_that_fails_is_tried_again() -> None:
    async def story(watched: Watched) -> None:
        await until(lambda: watched.machine.asked >= 2)
        assert watched.service.known is None
        watched.machine.topology = machine("dgx-h100")
        await until(lambda: watched.service.known is not None)

    watch(story, prepare=lambda stand_in: setattr(stand_in, "topology", None))


@pytest.mark.parametrize(
    ("most", "is_read"),
    [pytest.param(SOON, True, id="it comes"), pytest.param(0.05, False, id="it is late")],
)
def test_a_plan_waits_for_the_first_reading_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch, most: float, is_read: bool
) -> None:
    monkeypatch.setattr(topology_watcher, "FIRST_SECONDS", most)

    async def story(watched: Watched) -> None:
        waiting = [asyncio.create_task(watched.watcher.first_reading()) for _ in range(100)]
        await until(lambda: watched.machine.asked == 1)
        if is_read:
            assert not any(it.done() for it in waiting)
            watched.machine.may_answer.set()
        await asyncio.wait_for(asyncio.gather(*waiting), SOON)
        assert (watched.service.known is not None) == is_read
        watched.machine.may_answer.set()
        await until(lambda: watched.service.known is not None)
        await asyncio.wait_for(watched.watcher.first_reading(), SOON / 2)

    watch(story, prepare=lambda stand_in: stand_in.may_answer.clear())


def test_a_driver_that_changes_is_asked() -> None:
    async def story(watched: Watched) -> None:
        watched.machine.seen_drivers = "560"
        await until(lambda: watched.machine.asked == 2)
        await asyncio.sleep(0.1)
        assert watched.machine.asked == 2

    watch_read(story)


@pytest.mark.parametrize(("silent", "asked"), [(True, True), (False, False)])
def test_only_a_driver_that_is_silent_is_asked_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch, silent: bool, asked: bool
) -> None:
    monkeypatch.setattr(topology_watcher, "DRIVER_RETRY_SECONDS", 0.05)

    async def story(watched: Watched) -> None:
        watched.machine.silent = silent
        await asyncio.sleep(0.3)
        assert (watched.machine.asked > 1) == asked

    watch_read(story)


def test_unknown_mig_instances_make_one_reading_in_a_while() -> None:
    async def story(watched: Watched) -> None:
        await asyncio.gather(*(watched.watcher.seek_mig() for _ in range(10)))
        assert watched.machine.asked == 2

    watch_read(story)
