"""Whose turn it is, and what becomes of those who wait for theirs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from affinityd.daemon.api.answer_cache import AnswerCache
from affinityd.daemon.http.fair_queue import Turns
from affinityd.daemon.peers.caller_key import CallerKey
from affinityd.daemon.peers.callers import Callers
from affinityd.daemon.peers.connection import connection_of
from tests.stories import END, REQUEST, Story, Transport, in_time, tell


@dataclass
class Asker:
    """A connection, of which its caller alone is known."""

    whose: str
    name: str = ""
    turn: asyncio.Future[None] | None = None
    has_gone: bool = False

    def leave(self) -> None:
        self.has_gone = True
        if self.turn is not None:
            self.turn.set_result(None)


async def taken(turns: Turns, order: list[str], asker: str | Asker) -> None:
    asker = Asker(asker) if isinstance(asker, str) else asker
    await turns.take(asker)
    order.append(asker.name or asker.whose)


def served(*callers: str) -> list[str]:
    """Return in which order they have their turns who ask in this one."""

    async def run() -> list[str]:
        turns, order = Turns(), list[str]()
        await asyncio.gather(*(taken(turns, order, caller) for caller in callers))
        return order

    return in_time(run())


def test_who_comes_alone_waits_for_nobody() -> None:
    assert served("ann") == ["ann"]


def test_callers_have_their_turns_one_after_the_other() -> None:
    assert served(*["ann"] * 4, "bob", "bob", "eve") == [
        *("ann", "ann", "bob", "eve"),
        *("ann", "bob", "ann"),
    ]


def test_a_callers_requests_have_their_turns_as_they_came() -> None:
    async def run() -> list[str]:
        turns, order = Turns(), list[str]()
        askers = [Asker("ann", name) for name in "abcd"]
        await asyncio.gather(*(taken(turns, order, asker) for asker in askers))
        return order

    assert in_time(run()) == ["a", "b", "c", "d"]


def test_there_is_one_turn_a_turn_of_the_loop() -> None:
    async def run() -> None:
        turns, order = Turns(), list[str]()
        waiting = [asyncio.ensure_future(taken(turns, order, "ann")) for _ in range(5)]
        seen = []
        while len(order) < len(waiting):
            seen.append(len(order))
            await asyncio.sleep(0)
        assert {after - before for before, after in pairwise(seen)} <= {0, 1}

    in_time(run())


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

    assert in_time(run()) == ["ann", "bob", "bob", "eve"]


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

    in_time(run())


def test_who_had_gone_before_it_asked_takes_no_turn() -> None:
    async def run() -> None:
        turns = Turns()
        gone = Asker("ann", has_gone=True)
        await turns.take(gone)
        coming = turns.take(Asker("bob"))
        with suppress(StopIteration):  # it need not wait
            coming.send(None)
        assert gone.turn is None

    in_time(run())


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

    in_time(run())


async def read() -> None:
    """Be the first reading of a machine that has been read."""


def fronted(app: ASGIApp, first_reading: Callable[[], Awaitable[None]] = read) -> AnswerCache:
    return AnswerCache(
        app,
        callers=Callers(replayed=True),
        is_current=lambda: True,
        first_reading=first_reading,
        counter=lambda _answer: lambda: None,
    )


@dataclass
class Waiting:
    """Four connections of one caller that have asked in the same turn: it is the first one's."""

    story: Story
    data: bytes = REQUEST

    def __post_init__(self) -> None:
        self.transports = [Transport() for _ in range(4)]
        self.protocols = [self.story.connect(it) for it in self.transports]
        for it in self.protocols:
            it.data_received(self.data)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        pytest.param(
            "text/plain", "Too busy: this server is ending; try again in a moment", id="text"
        ),
        pytest.param("*/*", "this server is ending; try again in a moment", id="a document"),
    ],
)
def test_whoever_waits_when_the_server_ends_is_told_to_try_again(
    field: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def end(story: Story) -> None:
        waiting = Waiting(story, REQUEST[:-2] + f"accept: {field}\r\n\r\n".encode())
        await asyncio.sleep(0)
        first, *others = waiting.transports
        assert first.statuses == [200]
        for task in story.server.server_state.tasks:
            task.cancel()
        await story.settle()
        for it in others:
            assert it.statuses == [503]
            _, _, body = it.written.partition(END)
            line = body.decode() if field == "text/plain" else json.loads(body)["detail"] + "\n"
            assert line == said + "\n"
            assert body.count(b"\n") == 1

    assert tell(end, fronted=fronted).asked == [b"/plan"]
    assert caplog.records == []


@pytest.mark.parametrize("turns", [0, 1], ids=["before it could wait", "while it waits"])
def test_a_request_whose_connection_has_gone_is_dropped_without_a_word(
    turns: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def leave(story: Story) -> None:
        waiting = Waiting(story)
        for _ in range(turns):
            await asyncio.sleep(0)
        gone = waiting.protocols[1:3]
        for it in gone:
            it.connection_lost(None)
        await story.settle()
        assert [it.statuses for it in waiting.transports] == [[200], [], [], [200]]
        assert not story.server.server_state.tasks

    assert len(tell(leave, fronted=fronted).asked) == 2
    assert caplog.records == []


def test_a_connection_that_is_closing_while_its_request_waits_is_no_news(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def close(story: Story) -> None:
        waiting = Waiting(story)
        await asyncio.sleep(0)
        waiting.transports[1].closed = True  # its client has shut it, and not taken an answer
        await story.settle()
        assert not story.server.server_state.tasks

    tell(close, fronted=fronted)
    assert caplog.records == []


def test_a_request_that_waits_for_the_first_reading_has_no_turn_and_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    has_read, order = asyncio.Event(), list[CallerKey]()

    async def first_reading() -> None:
        await has_read.wait()

    async def ask(story: Story) -> None:
        waiting = Waiting(story)
        other = Transport("192.0.2.2")
        story.connect(other).data_received(REQUEST.replace(b"/plan", b"/readyz"))
        await story.settle()
        assert other.statuses == [200]
        assert [it.statuses for it in waiting.transports] == [[], [], [], []]
        waiting.protocols[1].connection_lost(None)
        late = Transport("192.0.2.3")
        story.connect(late).data_received(REQUEST)
        await story.settle()
        has_read.set()
        await story.settle()
        await story.settle()
        assert [it.statuses for it in waiting.transports] == [[200], [], [200], [200]]

    def front(app: ASGIApp) -> AnswerCache:
        async def noting(scope: Scope, receive: Receive, send: Send) -> None:
            connection = connection_of(scope)
            assert connection is not None
            order.append(connection.whose)
            await app(scope, receive, send)

        return fronted(noting, first_reading)

    tell(ask, fronted=front)
    first, many, late = "192.0.2.2", "192.0.2.1", "192.0.2.3"
    assert order == [first, many, many, late, many]
    assert caplog.records == []


def test_a_request_that_waits_for_the_first_reading_is_told_when_the_server_ends() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    async def end(story: Story) -> None:
        waiting = Waiting(story)
        await story.settle()
        for task in story.server.server_state.tasks:
            task.cancel()
        await story.settle()
        assert [it.statuses for it in waiting.transports] == [[503]] * 4

    assert tell(end, fronted=lambda app: fronted(app, never)).asked == []
