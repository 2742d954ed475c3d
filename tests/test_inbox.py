"""What has come and is not answered: in which order it is read, and how much of it lies there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.daemon.http.cached_response import FindAnswer
from affinityd.daemon.http.protocol import COPIES
from affinityd.daemon.http.refusals import ANSWER_SECONDS, HEAD_SECONDS, IDLE_SECONDS, MAX_HEAD
from tests.stories import REQUEST, Memory, Story, cut, head_of, nothing, tell

BODY = b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\n"
LAST = b"GET /plan HTTP/1.1\r\nconnection: close\r\n\r\n"


@given(st.lists(st.integers(0, 3), max_size=4), st.integers())
def test_what_is_taken_does_not_depend_on_where_the_network_cuts(
    kinds: list[int], seed: int
) -> None:
    """Requests with and without bodies, the last of them too large or not, cut anywhere."""
    body = BODY + b"\r\n\r\nGET /"
    texts = (REQUEST, body, head_of(MAX_HEAD), head_of(MAX_HEAD + 1))
    pieces = cut(b"".join(texts[kind] for kind in kinds), seed)
    story = tell(lambda story: story.send(*pieces))
    served = kinds[: kinds.index(3)] if 3 in kinds else kinds
    assert story.statuses == [200] * len(served) + [431] * (3 in kinds)


def test_empty_lines_before_a_request_are_skipped_and_begin_none() -> None:
    assert tell(lambda story: story.send(b"\r\n" * 10 + REQUEST)).statuses == [200]
    assert tell(lambda story: story.send(*[b"\r\n" * 10] * 30, REQUEST)).statuses == [200]

    async def idle(story: Story) -> None:
        await story.send(REQUEST, b"\r\n")
        story.after(IDLE_SECONDS)
        assert story.transport.closed

    assert tell(idle).statuses == [200]


def test_nothing_is_read_ahead_of_an_answer_wherever_the_network_cuts() -> None:
    data = REQUEST + BODY + b"x" * 9 + REQUEST

    async def ask(story: Story) -> None:
        story.may_answer.clear()
        await story.send(*(piece for piece in pieces if piece))
        assert story.asked == [b"/plan"]
        assert not story.transport.is_reading_now
        story.may_answer.set()
        await story.settle()
        await story.settle()
        assert story.asked == [b"/plan", b"/", b"/plan"]
        assert story.transport.is_reading_now

    for at in range(len(data)):
        pieces = data[:at], data[at : at + 1], data[at + 1 :]
        assert tell(ask).statuses == [200, 200, 200]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param((b"\r\n\r\n", b"x" * 27), id="empty lines"),
        pytest.param((REQUEST,), id="a request"),
        pytest.param((REQUEST[:-1], b"\n"), id="a request in pieces"),
    ],
)
def test_a_body_is_none_of_a_head_whatever_it_looks_like(body: tuple[bytes, ...]) -> None:
    assert len(b"".join(body)) == len(REQUEST) == 31
    head = BODY.replace(b"9", b"31")
    story = tell(lambda story: story.send(head, *body, REQUEST, head_of(MAX_HEAD + 1)))
    assert story.statuses == [200, 200, 431]
    assert story.asked == [b"/", b"/plan"]
    story = tell(lambda story: story.send(head, *body, head_of(MAX_HEAD + 1)))
    assert story.statuses == [200, 431]


@pytest.mark.parametrize("at", [0, 1, 3, 9], ids=["none", "a byte", "its body", "more"])
@pytest.mark.parametrize(
    "fields",
    [b"connection: upgrade\r\nupgrade: h2c\r\n", b"expect: 100-continue\r\n"],
    ids=["another protocol", "leave to send it"],
)
def test_what_follows_is_not_read_of_who_asks_for_what_he_does_not_get(
    fields: bytes, at: int
) -> None:
    """So many bytes of what follows come with the head."""
    head = b"POST / HTTP/1.1\r\n" + fields + b"content-length: 3\r\n\r\n"
    follows = b"abc" + REQUEST
    whole = tell(lambda story: story.send(head + follows))

    async def in_two(story: Story) -> None:
        story.may_answer.clear()
        await story.send(head + follows[:at], follows[at:])
        assert not story.transport.closed
        story.may_answer.set()
        await story.settle()

    for story in (whole, tell(in_two)):
        assert (story.statuses, story.transport.closed) == ([200], True)
        assert story.asked == [b"/"]
        assert story.reasons == {}


@dataclass(frozen=True)
class Lying:
    """What is sent, whether it is answered, and how much of it lies there then, in bytes."""

    pieces: tuple[bytes, ...]
    holds: int
    is_answered: bool = False


UNDER_WAY = COPIES * len(REQUEST)

LYING = [
    pytest.param(Lying((), 0), id="nothing"),
    pytest.param(Lying((b"GET /plan",), 9), id="a head that has not ended"),
    pytest.param(Lying((b"GET ", b"/", b"plan"), 9), id="a head that has not ended, in pieces"),
    pytest.param(Lying((REQUEST, b"GET /"), 5, is_answered=True), id="a second one"),
    pytest.param(Lying((b"\r\n" * 9,), 0), id="empty lines"),
    pytest.param(Lying((REQUEST,), UNDER_WAY), id="a request under way"),
    pytest.param(Lying((REQUEST[:9], REQUEST[9:]), UNDER_WAY), id="one under way, in pieces"),
    pytest.param(Lying((b"\r\n", REQUEST), UNDER_WAY), id="one under way, after an empty line"),
    pytest.param(Lying((REQUEST + b"GET /",), UNDER_WAY + 5), id="what waits behind it"),
    pytest.param(Lying((REQUEST, b"GET ", b"/"), UNDER_WAY + 5), id="what has come meanwhile"),
    pytest.param(
        Lying((REQUEST * 3,), UNDER_WAY + 2 * len(REQUEST)), id="whole requests that wait"
    ),
    pytest.param(Lying((REQUEST,), 0, is_answered=True), id="nothing after an answer"),
    pytest.param(Lying((REQUEST * 3,), 0, is_answered=True), id="nothing after all answers"),
    pytest.param(Lying((BODY,), COPIES * len(BODY)), id="a body that has not come"),
    pytest.param(Lying((BODY + b"xxx",), COPIES * len(BODY)), id="nothing of a body"),
    pytest.param(Lying((BODY, b"xx", b"xx"), COPIES * len(BODY)), id="nothing of one in pieces"),
    pytest.param(
        Lying((BODY + b"x" * 9 + b"GET /",), COPIES * len(BODY) + 5), id="what waits behind a body"
    ),
    pytest.param(Lying((BODY, b"xx"), 0, is_answered=True), id="nothing of a body after an answer"),
    pytest.param(
        Lying((REQUEST + BODY + b"xxx",), UNDER_WAY + len(BODY) + 3), id="a body whose head waits"
    ),
]


@pytest.mark.parametrize("untaken", [0, 700], ids=["", "and what is not taken of an answer"])
@pytest.mark.parametrize("lying", LYING)
def test_what_lies_there_is_what_a_connection_holds(lying: Lying, untaken: int) -> None:
    async def send(story: Story) -> None:
        story.transport.untaken = untaken
        if not lying.is_answered:
            story.may_answer.clear()
        await story.send(*lying.pieces)
        await story.settle()
        assert story.protocol.holds == lying.holds + untaken
        if story.total or lying.pieces:  # who has asked nothing has been weighed by nobody
            assert story.protocol.held == lying.holds + untaken
        assert story.protocol.is_stuck == bool(untaken)
        story.protocol.connection_lost(None)
        assert story.connections._held == 0
        assert story.protocol._inbox.is_empty

    tell(send)


WAYS = pytest.mark.parametrize(
    "remembers", [lambda: nothing, Memory], ids=["the app is asked", "it is remembered"]
)


@WAYS
def test_what_comes_while_an_answer_is_not_taken_waits_until_it_is(
    remembers: Callable[[], FindAnswer],
) -> None:
    async def ask(story: Story) -> None:
        await story.send(REQUEST)
        story.protocol.pause_writing()
        await story.send(REQUEST)
        assert story.statuses == [200]
        assert story.protocol.holds == story.protocol.held == len(REQUEST)
        assert not story.protocol.is_idle
        assert not story.transport.is_reading_now
        story.after(ANSWER_SECONDS - 0.5)
        assert not story.transport.closed
        story.protocol.resume_writing()
        await story.settle()
        assert story.transport.is_reading_now
        assert story.protocol.is_idle
        story.after(0)  # of a small answer that is remembered nobody says how much it is
        assert story.protocol.holds == story.protocol.held == 0

    assert tell(ask, remembered=remembers()).statuses == [200, 200]


@WAYS
def test_who_does_not_take_an_answer_is_ended_with_what_he_asked_since(
    remembers: Callable[[], FindAnswer],
) -> None:
    async def ask(story: Story) -> None:
        await story.send(REQUEST)
        story.protocol.pause_writing()
        await story.send(REQUEST)
        story.after(ANSWER_SECONDS + 0.1)
        assert story.transport.aborted
        story.protocol.connection_lost(None)
        await story.settle()

    story = tell(ask, remembered=remembers())
    assert story.statuses == [200]
    assert story.reasons == {"answer_time": 1}


@WAYS
def test_an_answer_that_is_not_taken_keeps_back_what_waited_behind_it(
    remembers: Callable[[], FindAnswer],
) -> None:
    async def ask(story: Story) -> None:
        story.may_answer.clear()
        await story.send(LAST.replace(b"close", b"x") + REQUEST + b"GET /")
        story.protocol.pause_writing()
        story.may_answer.set()
        await story.settle()
        assert story.statuses == []  # uvicorn waits, too, with what the app says
        story.protocol.resume_writing()
        await story.settle()
        assert story.statuses == [200, 200]
        story.after(HEAD_SECONDS + 0.1)

    story = tell(ask, remembered=remembers())
    assert story.statuses == [200, 200, 408]
    assert story.reasons == {"head_time": 1}


@WAYS
def test_after_the_last_answer_nothing_is_read_though_it_is_taken(
    remembers: Callable[[], FindAnswer],
) -> None:
    async def ask(story: Story) -> None:
        story.may_answer.clear()
        await story.send(LAST + REQUEST)
        story.may_answer.set()
        await story.settle()
        story.protocol.pause_writing()
        assert story.transport.closed
        story.protocol.resume_writing()
        await story.settle()

    story = tell(ask, remembered=remembers())
    assert story.statuses == [200]
    assert story.asked == [b"/plan"]
