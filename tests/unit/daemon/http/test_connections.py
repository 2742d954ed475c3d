"""How many connections there may be, of which caller, for how long; and whose turn it is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.daemon.http.connections import Connections
from affinityd.daemon.http.refusals import (
    MOST_OF_ONE,
    MOST_UNTAKEN,
    Refusal,
    RefusalLog,
)
from affinityd.daemon.peers.connection import TCP, CallerKey
from tests.support.connection_scripts import Transport


@dataclass(eq=False)
class Held:
    """A connection that is nothing but held."""

    caller: CallerKey
    deadline: float = 0.0
    transport: Any = field(default_factory=Transport)
    expired: bool = False

    def expire(self) -> None:
        self.expired = True


def counting(*held: Held, most: int = 100) -> Connections:
    """Return what counts these, all of which there is room for."""
    connections = Connections(RefusalLog(lambda _reason: None), most=most)
    for it in held:
        assert connections.add(it) is None
    return connections


@pytest.mark.parametrize(
    ("most", "of_one"),
    [
        pytest.param(5000, MOST_OF_ONE, id="many files"),
        pytest.param(32, 16, id="few files: half"),
        pytest.param(1, 1, id="hardly any"),
    ],
)
@pytest.mark.parametrize("caller", [1000, TCP], ids=["a user", "the network"])
def test_one_caller_has_so_many_connections_and_leaves_others_room(
    most: int, of_one: int, caller: CallerKey
) -> None:
    there = [Held(caller) for _ in range(of_one)]
    connections = counting(*there, most=most)
    assert connections.add(Held(caller)) is Refusal.CALLER
    assert connections.add(Held(7)) is (None if of_one < most else Refusal.FILES)
    connections.remove(there[0])
    assert connections.add(Held(caller)) is None


def test_where_there_is_no_room_nobody_comes_in() -> None:
    there = [Held(caller) for caller in range(8)]
    connections = counting(*there, most=8)
    assert connections.add(Held(9)) is Refusal.FILES
    connections.remove(there[3])
    assert connections.add(Held(9)) is None


def test_of_a_caller_that_takes_no_answers_the_newest_connection_ends() -> None:
    ann, *bobs = Held(1), Held(2), Held(2)
    connections = counting(ann, *bobs)
    for it in (ann, *bobs):
        it.transport.untaken = MOST_UNTAKEN // 2 + 1
        connections.weigh(it)
    assert [it.transport.aborted for it in (ann, *bobs)] == [False, False, True]


@dataclass(frozen=True)
class Swept:
    """When it is looked who is late, and what the deadline is then; whether it ends at last."""

    deadlines: dict[float, float]
    ends: bool


SWEPT = [
    pytest.param(Swept({10: 10, 11: 10}, ends=True), id="late twice"),
    pytest.param(Swept({10: 11, 11: 11}, ends=False), id="late at the last alone"),
    pytest.param(Swept({10: 10, 11: 20}, ends=False), id="has sent since"),
    pytest.param(Swept({10: 5, 11: 9}, ends=False), id="has sent since, and is late anew"),
    pytest.param(Swept({10: 5, 11: 9, 12: 9}, ends=True), id="has sent since, and no more"),
    pytest.param(Swept({10: 5, 11: 20, 20: 20}, ends=False), id="late again after a while"),
]


@pytest.mark.parametrize("swept", SWEPT)
def test_what_is_late_ends_unless_something_came_since_the_last_sweep(swept: Swept) -> None:
    it = Held(1)
    connections = counting(it)
    for now, deadline in swept.deadlines.items():
        assert not it.expired
        it.deadline = deadline
        connections.sweep(now)
    assert it.expired == swept.ends


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3))))
def test_what_is_counted_is_what_is_there(steps: list[tuple[bool, int]]) -> None:
    connections = counting(most=10)
    there: list[Held] = []
    for comes, caller in steps:
        if comes:
            held = Held(caller)
            theirs = sum(it.caller == caller for it in there)
            has_room = theirs < 5 and len(there) < 10
            assert (connections.add(held) is None) == has_room
            there += [held] if has_room else []
        elif there:
            connections.remove(there.pop(caller % len(there)))
        assert len(connections) == len(there)
        assert connections._shares.keys() == {it.caller for it in there}


def test_each_caller_has_a_turn_in_every_second_turn_of_the_loop_in_the_order_of_its_requests() -> (
    None
):
    order: list[tuple[CallerKey, int]] = []
    there = [Held(caller) for caller in (1, 1, 1, 1, 2, 2, TCP)]
    connections = counting(*there)

    async def ask(number: int, it: Held) -> None:
        await connections.turn(it)
        order.append((it.caller, number))

    async def run() -> None:
        waiting = [asyncio.ensure_future(ask(*it)) for it in enumerate(there)]
        seen = []
        while len(order) < len(there):
            seen.append(len(order))
            await asyncio.sleep(0)
        assert {after - before for before, after in pairwise(seen)} <= {0, 1, 2, 3}
        await asyncio.gather(*waiting)

    asyncio.run(run())
    assert order[:3] == [(1, 0), (2, 4), (TCP, 6)]
    assert order[3:5] == [(1, 1), (2, 5)]
    assert order[5:] == [(1, 2), (1, 3)]


def test_a_request_that_is_cancelled_while_it_waits_keeps_no_other_waiting() -> None:
    there = [Held(1) for _ in range(3)]
    connections = counting(*there)

    async def run() -> None:
        tasks = [asyncio.ensure_future(connections.turn(it)) for it in there]
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[1].cancel()
        await asyncio.wait_for(tasks[2], 5)

    asyncio.run(run())
