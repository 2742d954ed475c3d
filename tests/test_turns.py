from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import pairwise

from affinityd.api.turns import Turns


async def taken(turns: Turns, order: list[str], caller: str) -> None:
    await turns.take(caller)
    order.append(caller)


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


def test_who_has_gone_holds_up_nobody() -> None:
    async def run() -> list[str]:
        turns, order = Turns(), list[str]()
        waiting = [
            asyncio.ensure_future(taken(turns, order, name)) for name in ("ann", "bob", "eve")
        ]
        await asyncio.sleep(0)
        waiting[1].cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*waiting)
        await waiting[2]
        return order

    assert asyncio.run(run()) == ["ann", "eve"]


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
