"""How much, how long and how many: what the daemon takes of a request, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from affinityd.daemon.http import refusals
from affinityd.daemon.http.refusals import ANSWER_SECONDS, IDLE_SECONDS, REQUEST_SECONDS, Refusal
from tests.support.connection_scripts import END, REQUEST, Memory, Transport, sent, telling

Settings = dict[str, Any]  #: a Story's

MAX_HEAD, MAX_LINES = refusals.MAX_HEAD, refusals.MAX_LINES
#: With answers of the app, and with remembered ones.
of_both = pytest.mark.parametrize("settings", [{}, {"find_answer": Memory()}])


def head_of(size: int) -> bytes:
    """Return a request whose head has so many bytes."""
    begin = b"GET /plan HTTP/1.1\r\nhost: "
    return begin + b"x" * (size - len(begin) - len(END)) + END


def in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def arrivals(head: bytes) -> Iterator[list[bytes]]:
    """Yield the ways in which a request may come."""
    yield [head]
    yield from (in_pieces(head, size) for size in (1000, MAX_HEAD - 1))
    yield from ([head[:-last], head[-last:]] for last in (1, 2))
    yield [head[:-4], b"\r\n\r", b"\n"]


def test_a_head_of_64_kib_is_taken_and_one_byte_more_is_not() -> None:
    for pieces in arrivals(head_of(MAX_HEAD)):
        assert sent(*pieces).outcome == ([200], False, {})
        assert sent(REQUEST, *pieces).outcome == ([200, 200], False, {})
    for pieces in arrivals(head_of(MAX_HEAD + 1)):
        assert sent(*pieces).outcome == ([431], True, {"head_size": 1})
        assert sent(REQUEST, *pieces).outcome == ([200, 431], True, {"head_size": 1})


def test_a_head_has_so_many_lines_at_most() -> None:
    for lines, status in ((MAX_LINES, 200), (MAX_LINES + 1, 431)):
        fields = b"".join(b"a%d: b\r\n" % number for number in range(lines - 2))
        whole = b"GET / HTTP/1.1\r\n" + fields + b"\r\n"
        assert sent(whole).statuses == sent(*in_pieces(whole, 100)).statuses == [status]


@pytest.mark.parametrize(
    "fields",
    [
        b"content-length: %d\r\n\r\nabc" % 2**62,
        b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"expect: 100-continue\r\ncontent-length: 3\r\n\r\nabc",
    ],
)
def test_a_body_is_refused_once_it_comes(fields: bytes) -> None:
    data = b"POST /plan HTTP/1.1\r\n" + fields
    for story in (sent(data), sent(*in_pieces(data, 1)), sent(data + REQUEST)):
        assert story.outcome == ([413], True, {"body_size": 1})
        assert story.asked == []


def forgetful(query: bytes, _scope: object) -> bytes:
    answers: dict[bytes, bytes] = {}
    return answers[query]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\nx",
        b"GET / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % 2**65,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET /\0 HTTP/1.1\r\n\r\n",
        b"GET http://x?a=b HTTP/1.1\r\n\r\n",  # no path
        b"GET http://x:99999/plan HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\rhost: x\r\n\r\n",
        b"GET /plan/\xff HTTP/1.1\r\n\r\n",
        b"GET /plan?gpus=\xff HTTP/1.1\r\n\r\n",
        b"get / HTTP/1.1\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused_in_one_line_and_no_bug(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    story = sent(data, find_answer=forgetful)
    head, _, body = story.transport.written.partition(END)
    assert (story.outcome, story.asked) == (([400], True, {"malformed": 1}), [])
    assert re.fullmatch(rb"[ -~]+\n", body)
    assert f"content-length: {len(body)}\r\nconnection: close".encode() in head
    assert b"content-type: text/plain" in head
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_a_bug_is_told_as_one_and_the_log_says_where_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    story = sent(REQUEST, find_answer=forgetful)
    assert story.outcome == ([500], True, {"bug": 1})
    assert story.transport.written.endswith(END + b"the daemon has failed; its log says how\n")
    assert "this is a bug" in caplog.text
    assert "in forgetful" in caplog.text


@pytest.mark.parametrize(
    "pieces",
    [
        [REQUEST * 3],
        [REQUEST + REQUEST[:9], REQUEST[9:]],
        [REQUEST, REQUEST],
        [REQUEST[:9], REQUEST[9:] + REQUEST],
        [REQUEST + b"nothing"],
    ],
)
async def test_what_comes_before_an_answer_is_not_read_and_ends_the_connection(
    pieces: list[bytes],
) -> None:
    async with telling() as story:
        story.may_answer.clear()
        await story.send(*pieces)
        assert not story.transport.closed
        story.may_answer.set()
        await story.settle()
    assert (story.outcome, story.asked) == (([200], True, {}), [b"/plan"])
    assert b"connection: close\r\n" in story.transport.written


@pytest.mark.parametrize(
    ("head", "closes"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n", True),
        (b"GET / HTTP/1.0\r\n\r\n" + REQUEST, True),
    ],
)
def test_a_connection_goes_on_only_where_it_is_clear_what_comes(head: bytes, closes: bool) -> None:
    assert sent(head).outcome == ([200], closes, {})


@of_both
@pytest.mark.parametrize(
    ("pieces", "seconds", "statuses", "reason"),
    [
        ([], REQUEST_SECONDS, [], "silent"),
        ([b"GET /"], REQUEST_SECONDS, [408], "head_time"),
        ([b"GET /\r\n"], REQUEST_SECONDS, [408], "head_time"),  # HTTP/0.9
        ([REQUEST, b"GET /"], REQUEST_SECONDS, [200, 408], "head_time"),
        ([b"POST / HTTP/1.1\r\ncontent-length: 9" + END], REQUEST_SECONDS, [408], "head_time"),
        ([REQUEST], IDLE_SECONDS, [200], None),
    ],
)
async def test_a_client_that_sends_too_slowly_is_ended_in_time_and_not_before(
    pieces: list[bytes], seconds: float, statuses: list[int], reason: str | None, settings: Settings
) -> None:
    async with telling(**settings) as story:
        await story.send(*pieces)
        assert story.ends_after(seconds)
    assert story.outcome == (statuses, True, {reason: 1} if reason else {})


@pytest.mark.parametrize("before", [(), (REQUEST,)])
async def test_what_comes_of_a_head_gives_it_no_more_time(before: tuple[bytes, ...]) -> None:
    async with telling() as story:
        await story.send(*before, b"G")
        deadline = story.protocol.deadline
        await story.settle()
        await story.send(b"E", b"T")
        assert story.protocol.deadline == deadline


async def test_an_answer_has_a_minute_to_be_given() -> None:
    async with telling() as story:
        story.may_answer.clear()
        await story.send(REQUEST)
        assert story.ends_after(ANSWER_SECONDS)
        assert story.transport.aborted
    assert story.outcome == ([], True, {"answer_time": 1})


@of_both
async def test_the_last_answer_of_a_connection_has_a_minute_to_be_taken(settings: Settings) -> None:
    async with telling(**settings) as story:
        story.transport.untaken = 9
        await story.send(REQUEST.replace(END, b"\r\nconnection: close" + END))
        assert story.ends_after(ANSWER_SECONDS)
        assert story.transport.aborted
    assert story.outcome == ([200], True, {"answer_time": 1})


async def test_an_answer_that_is_being_taken_when_its_connection_ends_has_a_minute_too() -> None:
    async with telling() as story:
        await story.send(REQUEST)
        story.transport.untaken = 9
        story.after(IDLE_SECONDS + 0.1)
        assert (story.transport.closed, story.transport.aborted) == (True, False)
        assert story.ends_after(ANSWER_SECONDS)
        assert story.transport.aborted
    assert story.reasons == {"answer_time": 1}


async def test_while_an_answer_is_not_taken_the_app_is_asked_and_waits() -> None:
    memory = Memory()
    async with telling(find_answer=memory) as story:
        await story.send(REQUEST)
        story.protocol.pause_writing()
        await story.send(REQUEST)
        assert (story.statuses, story.asked) == ([200], [b"/plan"])  # it was remembered
        story.protocol.resume_writing()
        await story.settle()
    assert story.outcome == ([200, 200], False, {})
    assert memory.asked == 1


async def test_a_caller_that_takes_no_answers_loses_connections_once_their_bytes_are_many() -> None:
    async with telling() as story:
        others = [Transport() for _ in range(3)]
        for protocol, transport in [(story.connect(it), it) for it in others]:
            transport.untaken = refusals.MOST_UNTAKEN // 2
            protocol.data_received(REQUEST)
            await story.settle()
        assert [it.aborted for it in (*others, story.transport)] == [False, False, True, False]
    assert story.reasons == {"bytes": 1}


async def test_connections_that_are_too_many_are_refused_until_another_ends() -> None:
    async with telling(most=10) as story:
        there = [story.connect(Transport()) for _ in range(4)]
        refused, last = Transport(), Transport()
        story.connect(refused)
        assert (refused.written, refused.closed) == (Refusal.CALLER.reply, True)
        there[0].connection_lost(None)
        story.connect(last)
        assert not last.closed
    assert story.reasons == {"caller": 1}


async def test_a_request_whose_client_has_gone_is_not_asked_and_counts_until_its_turn() -> None:
    async with telling() as story:
        protocols = [story.connect(Transport()) for _ in range(4)]
        for it in protocols:
            it.data_received(REQUEST)
        for it in protocols:
            it.connection_lost(None)
        assert len(story.connections) == 5
        for _ in range(4):
            await story.settle()
        assert len(story.connections) == 1
        assert not story.server.server_state.tasks
    assert story.asked == []


async def test_a_request_that_waits_when_the_server_ends_is_cut_off_without_a_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with telling() as story:
        story.may_answer.clear()
        await story.send(REQUEST)
        for task in story.server.server_state.tasks:
            task.cancel()
        await story.settle()
        assert story.transport.aborted
    assert story.statuses == []
    assert caplog.records == []


def test_the_log_has_a_line_a_minute_of_each_kind(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = refusals.RefusalLog(lambda _reason: None)
    for at in (0.0, 1.0, refusals.QUIET_SECONDS - 1.0, refusals.QUIET_SECONDS):
        monkeypatch.setattr("time.monotonic", lambda at=at: at)
        register.note(Refusal.CALLER, 1000)
    first, second = (record.getMessage() for record in caplog.records)
    assert first == f"a connection of uid 1000 was closed: {Refusal.CALLER.line}"
    assert second == f"{first} (2 others since the last such line)"
