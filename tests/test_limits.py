"""How much, how long and how many: what the daemon takes of a request, and what it refuses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from starlette.types import Receive, Scope, Send

from affinityd.daemon.http.refusals import (
    ANSWER_SECONDS,
    HEAD_SECONDS,
    IDLE_SECONDS,
    MAX_BODY,
    MAX_HEAD,
    MAX_LINES,
    MOST_OF_ONE,
    QUIET_SECONDS,
    TOO_MANY,
    RefusalLog,
)
from tests.serving import sweep
from tests.stories import END, REQUEST, Story, Transport, head_of, in_pieces, tell

#: How a request may arrive.
ARRIVALS = [
    pytest.param(lambda head: [head], [], id="in one piece"),
    pytest.param(lambda head: in_pieces(head, 1000), [], id="in pieces"),
    pytest.param(lambda head: in_pieces(head, 65535), [], id="its end in two pieces"),
    pytest.param(lambda head: [head[:-2], head[-2:]], [], id="its end in halves"),
    pytest.param(lambda head: [head[:-1], head[-1:]], [], id="its last byte alone"),
    pytest.param(lambda head: [head[:-4], b"\r\n\r", b"\n"], [], id="its end alone, in two pieces"),
    pytest.param(
        lambda head: [head[:-1], head[-1:] + REQUEST], [], id="its last byte with another"
    ),
    pytest.param(lambda head: [REQUEST, head], [200], id="after another"),
    pytest.param(lambda head: [REQUEST + head], [200], id="with another before it"),
    pytest.param(lambda head: [head + REQUEST], [], id="with another behind it"),
    pytest.param(lambda head: [REQUEST + head[:9], head[9:]], [200], id="begun with another"),
]


@pytest.mark.parametrize(("arrive", "before"), ARRIVALS)
def test_a_head_of_64_kib_is_taken_and_one_byte_more_is_not(
    arrive: Callable[[bytes], list[bytes]], before: list[int]
) -> None:
    pieces = arrive(head_of(MAX_HEAD))
    taken = tell(lambda story: story.send(*pieces))
    assert taken.statuses == [200] * b"".join(pieces).count(b"GET ")
    assert not taken.transport.closed
    refused = tell(lambda story: story.send(*arrive(head_of(MAX_HEAD + 1))))
    assert refused.statuses == [*before, 431]
    assert refused.transport.closed
    assert refused.reasons == {"head_size": 1}


@pytest.mark.parametrize(
    "lead",
    [
        pytest.param(b"GET /plan HTTP/1.1\r\nhost: ", id="in a header"),
        pytest.param(b"GET /", id="in a target"),
        pytest.param(b"GET /plan HTTP/1.1\r\n", id="in a header's name"),
        pytest.param(b"", id="in a method"),
    ],
)
def test_what_never_ends_is_refused_at_64_kib(lead: bytes) -> None:
    story = tell(lambda story: story.send(lead, *[b"x" * 4096] * 17))
    assert story.statuses in ([431], [400])
    assert story.transport.closed


@pytest.mark.parametrize(("lines", "status"), [(MAX_LINES, 200), (MAX_LINES + 1, 431)])
def test_a_head_has_so_many_lines_at_most(lines: int, status: int) -> None:
    fields = b"".join(b"a%d: b\r\n" % number for number in range(lines - 2))
    whole = b"GET / HTTP/1.1\r\n" + fields + b"\r\n"
    assert tell(lambda story: story.send(whole)).statuses == [status]
    assert tell(lambda story: story.send(*in_pieces(whole, 100))).statuses == [status]


@pytest.mark.parametrize(("size", "status"), [(MAX_BODY, 200), (MAX_BODY + 1, 413)])
def test_a_body_of_64_kib_is_passed_over_and_a_larger_one_refused(size: int, status: int) -> None:
    head = b"POST /plan HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % size
    story = tell(lambda story: story.send(head, *in_pieces(b"x" * size + REQUEST, 9000)))
    assert story.statuses == ([200, 200] if status == 200 else [413])


NO_REQUESTS = [
    pytest.param(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", 411, id="chunked"),
    pytest.param(
        b"GET / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\nx", 400, id="2 CL"
    ),
    pytest.param(b"GET / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400, id="a negative length"),
    pytest.param(b"GET / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % 2**65, 400, id="2^65 bytes"),
    pytest.param(b"GET / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % 2**62, 413, id="2^62 bytes"),
    pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, id="HTTP/2"),
    pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, id="a TLS hello"),
    pytest.param(b"GET /\0 HTTP/1.1\r\n\r\n", 400, id="a NUL"),
    pytest.param(b"GET http://x HTTP/1.1\r\n\r\n", 400, id="a URL without a path"),
    pytest.param(b"GET http://x?a=b HTTP/1.1\r\n\r\n", 400, id="a URL with a query alone"),
    pytest.param(b"GET / HTTP/1.1\rhost: x\r\n\r\n", 400, id="a CR alone"),
    pytest.param(b"GET / HTTP/1.1\r\nhost\r\n\r\n", 400, id="a header without a colon"),
    pytest.param(b"GET /\xff HTTP/1.1\r\n\r\n", 400, id="bytes that are no ASCII in the path"),
    pytest.param(b"GET /?\xff HTTP/1.1\r\n\r\n", 400, id="bytes that are no ASCII in the query"),
    pytest.param(b"GET http://:80/ HTTP/1.1\r\n\r\n", 400, id="a target that is no URL"),
    pytest.param(b"get / HTTP/1.1\r\n\r\n", 400, id="a method in small letters"),
    pytest.param(b"CONNECT a:1 HTTP/1.1\r\n\r\n", 400, id="a tunnel"),
    pytest.param(b"GET / HTTP/9.9\r\n\r\n", 400, id="another version"),
]


@pytest.mark.parametrize(("data", "status"), NO_REQUESTS)
def test_what_is_no_request_is_refused_in_one_line(data: bytes, status: int) -> None:
    story = tell(lambda story: story.send(data))
    head, _, body = story.transport.written.partition(END)
    assert story.statuses == [status]
    assert re.fullmatch(rb"[ -~]+\n", body)
    assert f"content-length: {len(body)}\r\nconnection: close".encode() in head
    assert b"content-type: text/plain" in head
    assert story.transport.closed
    assert story.asked == []


def test_what_is_refused_behind_an_error_is_refused_for_its_own_fault() -> None:
    """An app answers errors while it handles them, and the next request is read right then."""

    class Mending(Story):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            try:
                int("nothing")
            except ValueError:
                await super().__call__(scope, receive, send)

    async def run() -> list[int]:
        story = Mending()
        large = b"GET / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY + 1)
        await story.send(REQUEST + large)
        return story.statuses

    assert asyncio.run(run()) == [200, 413]


@pytest.mark.parametrize(
    ("fields", "closes"),
    [
        pytest.param(b"", False, id="nothing said"),
        pytest.param(b"connection: close\r\n", True, id="close"),
        pytest.param(b"connection: upgrade\r\nupgrade: websocket\r\n", True, id="a websocket"),
        pytest.param(b"connection: upgrade, x\r\nupgrade: h2c\r\n", True, id="HTTP/2"),
        pytest.param(b"expect: 100-continue\r\ncontent-length: 9\r\n", True, id="a body to come"),
    ],
)
def test_a_connection_goes_on_only_where_it_is_clear_what_comes(
    fields: bytes, closes: bool
) -> None:
    story = tell(lambda story: story.send(b"GET / HTTP/1.1\r\n" + fields + b"\r\n"))
    assert (story.statuses, story.transport.closed) == ([200], closes)


def test_http_1_0_is_answered_once() -> None:
    story = tell(lambda story: story.send(b"GET / HTTP/1.0\r\n\r\n" + REQUEST))
    assert (story.statuses, story.transport.closed) == ([200], True)


@dataclass(frozen=True)
class Slow:
    """What is sent, and when it is over with the connection: seconds, and what is said."""

    pieces: tuple[bytes, ...]
    seconds: float
    statuses: list[int]
    reason: str | None


SLOW = [
    pytest.param(Slow((), HEAD_SECONDS, [], "silent"), id="nothing"),
    pytest.param(Slow((b"GET /",), HEAD_SECONDS, [408], "head_time"), id="half a head"),
    pytest.param(Slow((b"GET /\r\n",), HEAD_SECONDS, [408], "head_time"), id="HTTP/0.9"),
    pytest.param(
        Slow((REQUEST, b"GET /"), HEAD_SECONDS, [200, 408], "head_time"), id="half a second head"
    ),
    pytest.param(Slow((REQUEST,), IDLE_SECONDS, [200], None), id="no second request"),
    pytest.param(
        Slow((b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nx",), IDLE_SECONDS, [200], None),
        id="half a body",
    ),
    pytest.param(
        Slow(
            (b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\n", b"x", b"x"), IDLE_SECONDS, [200], None
        ),
        id="half a body, in pieces",
    ),
]


@pytest.mark.parametrize(
    ("before", "may_answer", "then"),
    [
        pytest.param((), True, (b"G", b"E", b"T"), id="the first head"),
        pytest.param((REQUEST, b"G"), True, (b"E", b"T"), id="the second head"),
        pytest.param((REQUEST,), True, (b"\r\n", b"\r\n"), id="an empty line"),
        pytest.param((REQUEST,), False, (b"G",), id="an answer, a head"),
        pytest.param((REQUEST,), False, (REQUEST, b"G"), id="an answer, requests"),
    ],
)
def test_what_comes_meanwhile_gives_nobody_more_time(
    before: tuple[bytes, ...], *, may_answer: bool, then: tuple[bytes, ...]
) -> None:
    async def drip(story: Story) -> None:
        if not may_answer:
            story.may_answer.clear()
        await story.send(*before)
        deadline = story.protocol.deadline
        await asyncio.sleep(0.01)
        await story.send(*then)
        assert story.protocol.deadline == deadline

    tell(drip)


@pytest.mark.parametrize("slow", SLOW)
def test_whoever_sends_too_slowly_is_ended_in_time_and_not_before(slow: Slow) -> None:
    async def send(story: Story) -> None:
        await story.send(*slow.pieces)
        story.after(slow.seconds - 0.5)
        assert not story.transport.closed
        story.after(slow.seconds + 0.1)
        assert story.transport.closed

    story = tell(send)
    assert story.statuses == slow.statuses
    assert story.reasons == ({slow.reason: 1} if slow.reason else {})


@pytest.mark.parametrize("is_taken", [True, False], ids=["late", "never taken"])
def test_an_answer_has_a_minute(*, is_taken: bool) -> None:
    async def ask(story: Story) -> None:
        story.may_answer.clear()
        await story.send(REQUEST)
        if not is_taken:
            story.may_answer.set()
            await story.settle()
            story.transport.closed = True  # what is written goes nowhere
            sweep(story.connections, story.protocol.deadline)
            assert story.transport.aborted
            return
        story.after(ANSWER_SECONDS - 0.5)
        assert not story.transport.closed
        story.after(ANSWER_SECONDS + 0.1)
        assert story.transport.aborted

    assert tell(ask).reasons == {"answer_time": 1}


def test_who_takes_his_answer_when_his_connection_is_ended_has_a_minute_for_it_too() -> None:
    async def take(story: Story) -> None:
        await story.send(REQUEST)
        story.transport.untaken = 9
        story.after(IDLE_SECONDS + 0.1)
        assert (story.transport.closed, story.transport.aborted) == (True, False)
        story.after(ANSWER_SECONDS - 0.5)
        assert not story.transport.aborted
        story.after(ANSWER_SECONDS + 0.1)
        assert story.transport.aborted

    assert tell(take).reasons == {"answer_time": 1}


def test_one_address_has_so_many_connections_and_the_next_takes_an_idle_ones_place() -> None:
    async def connect(story: Story) -> None:
        others = [Transport() for _ in range(MOST_OF_ONE)]
        there = [story.connect(it) for it in others]
        assert story.transport.aborted
        assert not any(it.closed for it in others)
        story.may_answer.clear()
        for it in there:
            it.data_received(REQUEST)
        last = Transport()
        story.connect(last)
        assert last.closed
        assert last.written == TOO_MANY.reply
        assert b"\r\n\r\n1024 connections of this caller are open" in last.written
        somebody = Transport("192.0.2.2")
        story.connect(somebody)
        assert not somebody.closed
        there[0].connection_lost(None)
        again = Transport()
        story.connect(again)
        assert not again.closed
        story.may_answer.set()
        await story.settle()

    assert tell(connect, most=5000).reasons == {"replaced": 1, "caller": 1}


def test_where_there_is_no_room_the_oldest_idle_one_of_whoever_has_most_goes() -> None:
    async def connect(story: Story) -> None:
        first = story.transport
        await story.send(REQUEST)
        greedy = [Transport("192.0.2.2") for _ in range(3)]
        protocols = [story.connect(it) for it in greedy]
        story.may_answer.clear()
        protocols[0].data_received(REQUEST)
        newcomer = Transport("192.0.2.3")
        story.connect(newcomer)
        assert [it.aborted for it in (first, *greedy)] == [False, False, True, False]
        assert not newcomer.closed
        assert len(story.connections) == 4
        story.may_answer.set()
        await story.settle()

    assert tell(connect, most=6).reasons == {"replaced": 1}


def test_where_everybody_waits_for_an_answer_a_newcomer_is_told_to_try_again() -> None:
    async def connect(story: Story) -> None:
        story.may_answer.clear()
        await story.send(REQUEST)
        newcomer = Transport("192.0.2.2")
        story.connect(newcomer)
        assert newcomer.written.startswith(b"HTTP/1.1 503 ")
        story.may_answer.set()
        await story.settle()
        assert story.statuses == [200]

    assert tell(connect, most=1).reasons == {"files": 1}


def test_the_log_has_a_line_a_minute_of_each_kind(caplog: pytest.LogCaptureFixture) -> None:
    seconds = [0.0]
    register = RefusalLog(clock=lambda: seconds[0])
    for at in (0.0, 1.0, QUIET_SECONDS - 1.0, QUIET_SECONDS):
        seconds[0] = at
        register.note(TOO_MANY, 1000)
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("a connection of uid 1000 was closed: 1024 connections of this caller")
    assert "\n" not in first
    assert second == f"{first} (2 others, too, since this was last said)"
