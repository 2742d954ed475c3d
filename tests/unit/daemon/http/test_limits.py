"""How much, how long and how many: what the daemon takes of a request, and what it refuses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from affinityd.daemon.http.refusals import (
    ANSWER_SECONDS,
    IDLE_SECONDS,
    MAX_HEAD,
    MAX_LINES,
    MOST_UNTAKEN,
    QUIET_SECONDS,
    REQUEST_SECONDS,
    Refusal,
    RefusalLog,
)
from tests.support.connection_scripts import (
    END,
    REQUEST,
    Memory,
    Story,
    Transport,
    head_of,
    in_pieces,
    tell,
)
from tests.support.servers import sweep

#: How a request may arrive.
ARRIVALS = [
    pytest.param(lambda head: [head], [], id="in one piece"),
    pytest.param(lambda head: in_pieces(head, 1000), [], id="in pieces"),
    pytest.param(lambda head: in_pieces(head, 65535), [], id="its end in two pieces"),
    pytest.param(lambda head: [head[:-2], head[-2:]], [], id="its end in halves"),
    pytest.param(lambda head: [head[:-1], head[-1:]], [], id="its last byte alone"),
    pytest.param(lambda head: [head[:-4], b"\r\n\r", b"\n"], [], id="its end alone, in two pieces"),
    pytest.param(lambda head: [REQUEST, head], [200], id="after another"),
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


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(b"content-length: 3\r\n\r\nabc", id="of some bytes"),
        pytest.param(b"content-length: %d\r\n\r\nabc" % 2**62, id="of 2^62 bytes"),
        pytest.param(b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", id="chunked"),
        pytest.param(b"expect: 100-continue\r\ncontent-length: 3\r\n\r\nabc", id="expected"),
    ],
)
def test_a_body_is_refused_once_it_comes(fields: bytes) -> None:
    data = b"POST /plan HTTP/1.1\r\n" + fields
    for story in (
        tell(lambda story: story.send(data)),
        tell(lambda story: story.send(*in_pieces(data, 1))),
        tell(lambda story: story.send(data + REQUEST)),
    ):
        assert (story.statuses, story.transport.closed) == ([413], True)
        assert story.reasons == {"body_size": 1}
        assert story.asked == []


def test_a_body_of_no_bytes_is_none() -> None:
    head = b"GET /plan HTTP/1.1\r\ncontent-length: 0\r\n\r\n"
    assert tell(lambda story: story.send(head, REQUEST)).statuses == [200, 200]


NO_REQUESTS = [
    pytest.param(
        b"GET / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\nx", 400, id="2 CL"
    ),
    pytest.param(b"GET / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400, id="a negative length"),
    pytest.param(b"GET / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % 2**65, 400, id="2^65 bytes"),
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


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([REQUEST * 3], id="in one piece"),
        pytest.param([REQUEST + REQUEST[:9], REQUEST[9:]], id="in part"),
        pytest.param([REQUEST, REQUEST], id="one after the other"),
        pytest.param([REQUEST[:9], REQUEST[9:] + REQUEST], id="behind one in pieces"),
        pytest.param([REQUEST + b"nothing"], id="what is no request"),
    ],
)
def test_what_comes_before_an_answer_is_not_read_and_ends_the_connection(
    pieces: list[bytes],
) -> None:
    async def ask(story: Story) -> None:
        story.may_answer.clear()
        await story.send(*pieces)
        assert not story.transport.closed
        story.may_answer.set()
        await story.settle()

    story = tell(ask)
    assert (story.statuses, story.transport.closed) == ([200], True)
    assert b"connection: close\r\n" in story.transport.written
    assert story.asked == [b"/plan"]
    assert story.reasons == {}


@pytest.mark.parametrize(
    ("fields", "closes"),
    [
        pytest.param(b"", False, id="nothing said"),
        pytest.param(b"connection: close\r\n", True, id="close"),
        pytest.param(b"connection: upgrade\r\nupgrade: websocket\r\n", True, id="a websocket"),
        pytest.param(b"connection: upgrade, x\r\nupgrade: h2c\r\n", True, id="HTTP/2"),
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
    pytest.param(Slow((), REQUEST_SECONDS, [], "silent"), id="nothing"),
    pytest.param(Slow((b"GET /",), REQUEST_SECONDS, [408], "head_time"), id="half a head"),
    pytest.param(Slow((b"GET /\r\n",), REQUEST_SECONDS, [408], "head_time"), id="HTTP/0.9"),
    pytest.param(
        Slow((REQUEST, b"GET /"), REQUEST_SECONDS, [200, 408], "head_time"), id="half a second head"
    ),
    pytest.param(
        Slow(
            (b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\n",), REQUEST_SECONDS, [408], "head_time"
        ),
        id="a body that does not come",
    ),
    pytest.param(Slow((REQUEST,), IDLE_SECONDS, [200], None), id="no second request"),
]


@pytest.mark.parametrize("before", [(), (REQUEST,)], ids=["the first head", "the second head"])
def test_what_comes_of_a_head_gives_it_no_more_time(before: tuple[bytes, ...]) -> None:
    async def drip(story: Story) -> None:
        await story.send(*before, b"G")
        deadline = story.protocol.deadline
        await asyncio.sleep(0.01)
        await story.send(b"E", b"T")
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


def test_while_an_answer_is_not_taken_the_app_is_asked_and_waits() -> None:
    async def ask(story: Story) -> None:
        await story.send(REQUEST)
        story.protocol.pause_writing()
        await story.send(REQUEST)
        assert story.statuses == [200]
        assert story.asked == [b"/plan"]  # it was remembered, and would be
        story.protocol.resume_writing()
        await story.settle()
        assert story.statuses == [200, 200]

    memory = Memory()
    assert tell(ask, find_answer=memory).reasons == {}
    assert memory.asked == 1


def test_a_caller_that_takes_no_answers_loses_connections_once_they_are_too_many_bytes() -> None:
    async def ask(story: Story) -> None:
        others = [Transport() for _ in range(3)]
        there = [(story.connect(it), it) for it in others]
        for protocol, transport in there:
            transport.untaken = MOST_UNTAKEN // 2
            protocol.data_received(REQUEST)
            await story.settle()
        assert [it.aborted for it in others] == [False, False, True]
        assert not story.transport.aborted

    assert tell(ask).reasons == {"bytes": 1}


def test_connections_that_are_too_many_are_refused_until_another_ends() -> None:
    async def connect(story: Story) -> None:
        there = [story.connect(Transport()) for _ in range(4)]
        refused, last = Transport(), Transport()
        story.connect(refused)
        assert refused.written == Refusal.CALLER.reply
        assert refused.closed
        there[0].connection_lost(None)
        story.connect(last)
        assert not last.closed

    assert tell(connect, most=10).reasons == {"caller": 1}


def test_a_request_whose_client_has_gone_is_not_asked_and_counts_until_its_turn() -> None:
    async def leave(story: Story) -> None:
        protocols = [story.connect(Transport()) for _ in range(4)]
        for it in protocols:
            it.data_received(REQUEST)
        for it in protocols:
            it.connection_lost(None)
        assert len(story.connections) == 5
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(story.connections) == 1
        assert not story.server.server_state.tasks

    assert tell(leave).asked == []


def test_a_request_that_waits_when_the_server_ends_is_cut_off_without_a_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def end(story: Story) -> None:
        story.may_answer.clear()
        await story.send(REQUEST)
        for task in story.server.server_state.tasks:
            task.cancel()
        await story.settle()
        assert story.transport.aborted

    assert tell(end).statuses == []
    assert caplog.records == []


def test_the_log_has_a_line_a_minute_of_each_kind(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = RefusalLog(lambda _reason: None)
    for at in (0.0, 1.0, QUIET_SECONDS - 1.0, QUIET_SECONDS):
        monkeypatch.setattr("time.monotonic", lambda at=at: at)
        register.note(Refusal.CALLER, 1000)
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("a connection of uid 1000 was closed: this caller has as many")
    assert "\n" not in first
    assert second == f"{first} (2 others, too, since this was last said)"
