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
from affinityd.topology.node import Node
from tests.machines.facts import machine

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


def keep(
    story: Callable[[StandIn, TopologyWatcher, PlanService, list[Node]], Awaitable[None]],
) -> None:
    """Run a story beside a watcher that watches."""

    async def run() -> None:
        stand_in, service, told = StandIn(), PlanService(), list[Node]()
        watcher = TopologyWatcher(
            service, stand_in, reserved=frozenset({0}), on_read=lambda: told.append(service.node)
        )
        watching = asyncio.create_task(watcher.watch())
        await until(lambda: len(told) == 1)
        await story(stand_in, watcher, service, told)
        watching.cancel()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.005)

    await asyncio.wait_for(wait(), SOON)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_watcher, "DRIVER_CHECK_SECONDS", 0.02)


def smaller(topology: Topology | None) -> Topology:
    assert topology is not None
    return replace(topology, cores=topology.cores[1:])


def test_the_first_reading_has_the_drivers_answers_and_the_reserved_cpus() -> None:
    async def story(
        stand_in: StandIn, _: TopologyWatcher, service: PlanService, told: list[Node]
    ) -> None:
        assert stand_in.asked == 1
        assert service.node is told[0]
        assert (service.node.generation, service.node.reserved) == (1, frozenset({0}))

    keep(story)


def test_a_cpu_that_goes_does_not_wait_for_a_driver_that_hangs() -> None:
    async def story(
        stand_in: StandIn, watcher: TopologyWatcher, service: PlanService, _: list[Node]
    ) -> None:
        stand_in.may_answer.clear()
        watcher.want_reading()
        await until(lambda: stand_in.asked == 2)
        stand_in.topology, stand_in.seen_online = smaller(stand_in.topology), "1-223"
        await asyncio.wait_for(watcher.refresh(), 1)
        assert service.node.generation == 2
        stand_in.may_answer.set()

    keep(story)


def test_many_who_notice_one_change_read_it_once() -> None:
    async def story(
        stand_in: StandIn, watcher: TopologyWatcher, _: PlanService, told: list[Node]
    ) -> None:
        stand_in.topology, stand_in.seen_online = smaller(stand_in.topology), "1-223"
        await asyncio.gather(*(watcher.refresh() for _ in range(20)))
        await until(lambda: len(told) == 2)
        assert watcher.is_current()

    keep(story)


def test_a_reading_without_a_difference_is_no_generation() -> None:
    async def story(
        stand_in: StandIn, watcher: TopologyWatcher, service: PlanService, told: list[Node]
    ) -> None:
        watcher.want_reading()
        await until(lambda: len(told) == 2)
        assert (service.node.generation, stand_in.asked) == (1, 2)

    keep(story)


def test_a_machine_that_cannot_be_read_keeps_its_last_reading_until_it_can() -> None:
    async def story(
        stand_in: StandIn, watcher: TopologyWatcher, service: PlanService, _: list[Node]
    ) -> None:
        before = stand_in.topology
        stand_in.topology, stand_in.seen_online = None, "1-223"
        await watcher.refresh()
        assert service.node.topology == before
        assert not watcher.is_current()
        stand_in.topology = smaller(before)
        await watcher.refresh()
        assert service.node.topology == stand_in.topology

    keep(story)


def test_a_machine_that_cannot_be_read_is_news_once_however_many_ask(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(
        stand_in: StandIn, watcher: TopologyWatcher, _: PlanService, __: list[Node]
    ) -> None:
        for online in ("1-223", "2-223"):
            before, stand_in.topology, stand_in.seen_online = stand_in.topology, None, online
            for _request in range(5):
                await watcher.refresh()
            stand_in.topology = smaller(before)
            await watcher.refresh()

    keep(story)
    told = [record for record in caplog.records if "could not be read" in record.message]
    assert len(told) == 2


def test_a_first_reading_that_fails_is_tried_again() -> None:
    async def run() -> None:
        stand_in, service = StandIn(), PlanService()
        topology, stand_in.topology = stand_in.topology, None
        watcher = TopologyWatcher(service, stand_in, reserved=frozenset(), on_read=lambda: None)
        watching = asyncio.create_task(watcher.watch())
        await until(lambda: stand_in.asked >= 2)
        assert service.known is None
        stand_in.topology = topology
        await until(lambda: service.known is not None)
        watching.cancel()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("most", "is_read"),
    [pytest.param(SOON, True, id="it comes"), pytest.param(0.05, False, id="it is late")],
)
def test_a_plan_waits_for_the_first_reading_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch, most: float, is_read: bool
) -> None:
    monkeypatch.setattr(topology_watcher, "FIRST_SECONDS", most)

    async def run() -> None:
        stand_in, service = StandIn(), PlanService()
        stand_in.may_answer.clear()
        watcher = TopologyWatcher(service, stand_in, reserved=frozenset(), on_read=lambda: None)
        watching = asyncio.create_task(watcher.watch())
        waiting = [asyncio.create_task(watcher.first_reading()) for _ in range(100)]
        await until(lambda: stand_in.asked == 1)
        if is_read:
            assert not any(it.done() for it in waiting)
            stand_in.may_answer.set()
        await asyncio.wait_for(asyncio.gather(*waiting), SOON)
        assert (service.known is not None) == is_read
        stand_in.may_answer.set()
        await until(lambda: service.known is not None)
        await asyncio.wait_for(watcher.first_reading(), SOON / 2)
        watching.cancel()

    asyncio.run(run())


def test_a_driver_that_changes_is_asked() -> None:
    async def story(
        stand_in: StandIn, _: TopologyWatcher, __: PlanService, ___: list[Node]
    ) -> None:
        stand_in.seen_drivers = "560"
        await until(lambda: stand_in.asked == 2)
        await asyncio.sleep(0.1)
        assert stand_in.asked == 2

    keep(story)


@pytest.mark.parametrize(("silent", "asked"), [(True, True), (False, False)])
def test_only_a_driver_that_is_silent_is_asked_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch, silent: bool, asked: bool
) -> None:
    monkeypatch.setattr(topology_watcher, "DRIVER_RETRY_SECONDS", 0.05)

    async def story(
        stand_in: StandIn, _: TopologyWatcher, __: PlanService, ___: list[Node]
    ) -> None:
        stand_in.silent = silent
        await asyncio.sleep(0.3)
        assert (stand_in.asked > 1) == asked

    keep(story)


def test_mig_instances_that_nobody_knows_make_one_reading_in_a_while() -> None:
    async def story(
        stand_in: StandIn, watcher: TopologyWatcher, _: PlanService, __: list[Node]
    ) -> None:
        await asyncio.gather(*(watcher.seek_mig() for _ in range(10)))
        assert stand_in.asked == 2

    keep(story)
