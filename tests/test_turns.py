from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from affinityd.api.turns import Turns


@dataclass
class Asker:
    """A connection, of which its caller alone is known."""

    whose: str
    turn: asyncio.Future[None] | None = None
    has_gone: bool = False

    def leave(self) -> None:
        self.has_gone = True
        if self.turn is not None:
            self.turn.set_result(None)


async def taken(turns: Turns, order: list[str], asker: str | Asker) -> None:
    asker = Asker(asker) if isinstance(asker, str) else asker
    await turns.take(asker)
    order.append(asker.whose)


def served(*callers: str) -> list[str]:
    """Return in which order they have their turns who ask in this one."""

    async def run() -> list[str]:
        turns, order = Turns(), list[str]()
        await asyncio.gather(*(taken(turns, order, caller) for caller in callers))
        return order

    return asyncio.run(run())


def test_who_comes_alone_waits_for_nobody() -> None:
    assert served("ann") == ["ann"]


def test_callers_have_their_turns_one_after_the_other() -> None:
    assert served(*["ann"] * 4, "bob", "bob", "eve") == [
        *("ann", "ann", "bob", "eve"),
        *("ann", "bob", "ann"),
    ]


def test_there_is_one_turn_a_turn_of_the_loop() -> None:
    async def run() -> None:
        turns, order = Turns(), list[str]()
        waiting = [asyncio.ensure_future(taken(turns, order, "ann")) for _ in range(5)]
        seen = []
        while len(order) < len(waiting):
            seen.append(len(order))
            await asyncio.sleep(0)
        assert {after - before for before, after in pairwise(seen)} <= {0, 1}

    asyncio.run(run())


def test_who_has_gone_waits_no_longer_and_takes_no_turn() -> None:
    async def run() -> list[str]:
        turns, order = Turns(), list[str]()
        askers = [Asker(name) for name in ("ann", "bob", "bob", "eve")]
        waiting = [asyncio.ensure_future(taken(turns, order, asker)) for asker in askers]
        await asyncio.sleep(0)  # it is ann's turn
        askers[1].leave()
        askers[2].leave()
        await asyncio.gather(*waiting)
        return order

    assert asyncio.run(run()) == ["ann", "bob", "bob", "eve"]


def test_of_those_who_have_gone_nothing_stays() -> None:
    async def run() -> None:
        turns = Turns()
        await turns.take(Asker("ann"))
        askers = [Asker("bob") for _ in range(100)]
        waiting = [asyncio.ensure_future(taken(turns, [], asker)) for asker in askers]
        while not all(asker.turn for asker in askers):
            await turns.take(Asker("eve"))
        for asker in askers:
            asker.leave()
        await asyncio.gather(*waiting)
        await turns.take(Asker("bob"))
        assert not turns._waiting

    asyncio.run(run())


def test_who_had_gone_before_it_asked_takes_no_turn() -> None:
    async def run() -> None:
        turns = Turns()
        gone = Asker("ann", has_gone=True)
        await turns.take(gone)
        coming = turns.take(Asker("bob"))
        with suppress(StopIteration):  # it need not wait
            coming.send(None)
        assert gone.turn is None

    asyncio.run(run())


def test_after_all_have_gone_who_comes_waits_for_nobody() -> None:
    async def run() -> None:
        turns, order = Turns(), list[str]()
        for _ in range(3):
            await taken(turns, order, "ann")
            await asyncio.sleep(0.001)
        coming = taken(turns, order, "ann")
        with suppress(StopIteration):
            coming.send(None)
        assert len(order) == 4

    asyncio.run(run())
