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
from affinityd.daemon.http.refusals import MOST_OF_ONE, Refusal, RefusalLog
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
    assert [connections.add(it) for it in held] == [None] * len(held)
    return connections


@pytest.mark.parametrize(("most", "of_one"), [(5000, MOST_OF_ONE), (32, 16), (1, 1)])
@pytest.mark.parametrize("caller", [1000, TCP])
def test_one_caller_has_so_many_connections_and_leaves_others_room(
    most: int, of_one: int, caller: CallerKey
) -> None:
    there = [Held(caller) for _ in range(of_one)]
    connections = counting(*there, most=most)
    assert connections.add(Held(caller)) is Refusal.CALLER
    assert connections.add(Held(7)) is (None if of_one < most else Refusal.FILES)
    connections.remove(there[0])
    assert connections.add(Held(caller)) is None


@pytest.mark.parametrize(
    ("deadlines", "ends"),
    [
        ({10: 10, 11: 10}, True),
        ({10: 11, 11: 11}, False),  # late at the last alone
        ({10: 5, 11: 9}, False),  # has sent since, and is late anew
        ({10: 5, 11: 9, 12: 9}, True),
        ({10: 5, 11: 20, 20: 20}, False),  # late again after a while
    ],
)
def test_what_is_late_ends_unless_something_came_since_the_last_sweep(
    deadlines: dict[float, float], ends: bool
) -> None:
    it = Held(1)
    connections = counting(it)
    for now, deadline in deadlines.items():
        assert not it.expired
        it.deadline = deadline
        connections.sweep(now)
    assert it.expired == ends


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


async def test_each_caller_has_every_second_turn_of_the_loop_in_the_order_of_its_requests() -> None:
    order: list[tuple[CallerKey, int]] = []
    there = [Held(caller) for caller in (1, 1, 1, 1, 2, 2, TCP)]
    connections = counting(*there)

    async def ask(number: int, it: Held) -> None:
        await connections.turn(it)
        order.append((it.caller, number))

    waiting = [asyncio.ensure_future(ask(*it)) for it in enumerate(there)]
    seen = []
    while len(order) < len(there):
        seen.append(len(order))
        await asyncio.sleep(0)
    assert {after - before for before, after in pairwise(seen)} <= {0, 1, 2, 3}
    await asyncio.gather(*waiting)
    assert order == [(1, 0), (2, 4), (TCP, 6), (1, 1), (2, 5), (1, 2), (1, 3)]


async def test_a_request_that_is_cancelled_while_it_waits_keeps_no_other_waiting() -> None:
    there = [Held(1) for _ in range(3)]
    connections = counting(*there)
    tasks = [asyncio.ensure_future(connections.turn(it)) for it in there]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[1].cancel()
    await tasks[2]
