"""How much, how long and how many: the daemon's HTTP against a transport that is none.

The server is uvicorn's, as installed: where a newer one no longer calls what is overridden, these
tests fail.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from affinityd.api.connections import Connection, Connections
from affinityd.api.protocol import Protocol
from affinityd.api.refusals import (
    ANSWER_SECONDS,
    HEAD_SECONDS,
    IDLE_SECONDS,
    MAX_BODY,
    MAX_HEAD,
    MAX_LINES,
    MOST_OF_ONE,
    QUIET_SECONDS,
    REASONS,
    TOO_MANY,
    Caller,
    Register,
)
from affinityd.server import Server
from tests.serving import sweep

REQUEST = b"GET /plan HTTP/1.1\r\nhost: x\r\n\r\n"
END = b"\r\n\r\n"


@dataclass(frozen=True)
class Address:
    """A TCP socket as far as it is asked."""

    peer: str
    family = socket.AF_INET

    def getsockname(self) -> tuple[str, int]:
        return "192.0.2.9", 9465

    def getpeername(self) -> tuple[str, int]:
        return self.peer, 4000


class Transport(asyncio.Transport):
    """Takes what is written, and passes nothing on."""

    def __init__(self, address: str = "192.0.2.1") -> None:
        super().__init__({"socket": Address(address)})
        self.written = b""
        self.is_reading_now = True
        self.closed = False
        self.aborted = False
        self.untaken = 0

    def write(self, data: Any) -> None:  # noqa: ANN401 - bytes of any kind
        self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        return self.untaken

    def pause_reading(self) -> None:
        self.is_reading_now = False

    def resume_reading(self) -> None:
        self.is_reading_now = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True


@dataclass
class Story:
    """One connection, and what its server does."""

    reasons: Counter[str] = field(default_factory=Counter)
    most: int = 10
    asked: list[bytes] = field(default_factory=list)
    transport: Transport = field(default_factory=Transport)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.may_answer.set()
        counters = {
            reason: (lambda reason=reason: self.reasons.update([reason])) for reason in REASONS
        }
        self.connections = Connections(Register(counters), most=self.most)
        self.server = Server(self, self.connections)
        self.server.config.load()
        self.protocol = self.connect(self.transport)

    def connect(self, transport: Transport) -> Protocol:
        make = cast("Callable[..., Protocol]", self.server.config.http_protocol_class)
        loop = asyncio.get_running_loop()
        protocol = make(self.server.config, self.server.server_state, {}, loop)
        protocol.connection_made(transport)
        return protocol

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        self.asked.append(scope["raw_path"])
        await self.may_answer.wait()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            if not self.transport.closed:
                self.protocol.data_received(piece)
            await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    def after(self, seconds: float) -> None:
        """Sweep as if so many seconds had passed, twice."""
        sweep(self.connections, asyncio.get_running_loop().time() + seconds)

    @property
    def statuses(self) -> list[int]:
        found = re.findall(rb"HTTP/1\.1 (\d+) ", self.transport.written)
        return [int(status) for status in found]


def tell(story: Callable[[Story], Awaitable[None]], **settings: Any) -> Story:  # noqa: ANN401 - Story's
    """Run a story on a new connection."""

    async def run() -> Story:
        told = Story(**settings)
        await story(told)
        return told

    return asyncio.run(run())


def head_of(size: int) -> bytes:
    """Return a request whose head has so many bytes."""
    begin = b"GET /plan HTTP/1.1\r\nhost: "
    return begin + b"x" * (size - len(begin) - len(END)) + END


def in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


#: How a request may arrive.
ARRIVALS = [
    pytest.param(lambda head: [head], [], id="in one piece"),
    pytest.param(lambda head: in_pieces(head, 1000), [], id="in pieces"),
    pytest.param(lambda head: in_pieces(head, 65535), [], id="its end in two pieces"),
    pytest.param(lambda head: [head[:-2], head[-2:]], [], id="its end in halves"),
    pytest.param(lambda head: [REQUEST, head], [200], id="after another"),
    pytest.param(lambda head: [REQUEST + head], [200], id="with another before it"),
    pytest.param(lambda head: [head + REQUEST], [], id="with another behind it"),
    pytest.param(lambda head: [REQUEST + head[:9], head[9:]], [200], id="begun with another"),
]


@pytest.mark.parametrize(("arrive", "before"), ARRIVALS)
def test_a_head_of_64_kib_is_taken_and_one_byte_more_is_not(
    arrive: Callable[[bytes], list[bytes]], before: list[int]
) -> None:
    taken = tell(lambda story: story.send(*arrive(head_of(MAX_HEAD))))
    assert set(taken.statuses) == {200}
    assert not taken.transport.closed
    refused = tell(lambda story: story.send(*arrive(head_of(MAX_HEAD + 1))))
    assert refused.statuses == [*before, 431]
    assert refused.transport.closed
    assert refused.reasons == {"head_size": 1}


@given(st.lists(st.integers(0, 3), max_size=4), st.integers())
def test_what_is_taken_does_not_depend_on_where_the_network_cuts(
    kinds: list[int], seed: int
) -> None:
    """Requests with and without bodies, the last of them too large or not, cut anywhere."""
    body = b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\n\r\n\r\nGET /"
    texts = (REQUEST, body, head_of(MAX_HEAD), head_of(MAX_HEAD + 1))
    data = b"".join(texts[kind] for kind in kinds)
    cuts = sorted(random.Random(seed).choices(range(len(data) + 1), k=6))  # noqa: S311 - no secret
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if b > a]
    story = tell(lambda story: story.send(*pieces))
    served = kinds[: kinds.index(3)] if 3 in kinds else kinds
    assert story.statuses == [200] * len(served) + [431] * (3 in kinds)


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


def test_empty_lines_before_a_request_are_skipped_and_begin_none() -> None:
    assert tell(lambda story: story.send(b"\r\n" * 10 + REQUEST)).statuses == [200]
    assert tell(lambda story: story.send(*[b"\r\n" * 10] * 30, REQUEST)).statuses == [200]

    async def idle(story: Story) -> None:
        await story.send(REQUEST, b"\r\n")
        story.after(IDLE_SECONDS)
        assert story.transport.closed

    assert tell(idle).statuses == [200]


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
    pytest.param(b"GET / HTTP/1.1\rhost: x\r\n\r\n", 400, id="a CR alone"),
    pytest.param(b"GET / HTTP/1.1\r\nhost\r\n\r\n", 400, id="a header without a colon"),
    pytest.param(b"GET /\xff HTTP/1.1\r\n\r\n", 400, id="bytes that are no ASCII in the path"),
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


def test_nothing_is_read_ahead_of_an_answer() -> None:
    async def ask(story: Story) -> None:
        story.may_answer.clear()
        await story.send(REQUEST * 3)
        assert story.asked == [b"/plan"]
        assert not story.transport.is_reading_now
        story.may_answer.set()
        await story.settle()
        await story.settle()
        assert len(story.asked) == 3
        assert story.transport.is_reading_now

    assert tell(ask).statuses == [200, 200, 200]


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
]


@pytest.mark.parametrize("before", [(), (REQUEST,)], ids=["the first", "the second"])
def test_what_comes_of_a_head_does_not_give_it_more_time(before: tuple[bytes, ...]) -> None:
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


def test_a_byte_now_and_then_does_not_make_the_time_longer() -> None:
    async def send(story: Story) -> None:
        began = story.protocol.deadline
        await story.send(b"G", b"E", b"T", b" ")
        assert story.protocol.deadline == began

    tell(send)


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


def test_one_user_has_so_many_connections_and_the_next_is_refused() -> None:
    first, *_ = there = counted(*[1000] * MOST_OF_ONE, most=5000)
    connections = first.connections
    assert connections.add(Held(1000)) is TOO_MANY
    assert connections.add(Held(1001)) is None
    assert not any(it.ended for it in there)
    connections.remove(first)
    assert connections.add(Held(1000)) is None


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


@dataclass(eq=False)
class Held:
    """A connection that is nothing but held."""

    caller: Caller
    deadline: float = 0.0
    is_idle: bool = True
    is_stuck: bool = False
    holds: int = 0
    held: int = 0
    ended: bool = False

    def expire(self) -> None:
        raise AssertionError

    def end(self) -> None:
        self.ended = True


def counted(*callers: Caller, most: int = 100, most_held: int = 1000) -> tuple[Counted, ...]:
    """Return connections of these callers, all of which there is room for."""
    connections = Connections(Register(), most=most, most_held=most_held)
    there = tuple(Counted(caller, connections) for caller in callers)
    for it in there:
        assert connections.add(it) is None
    return there


class Counted(Held):
    """One that says how much it holds."""

    def __init__(self, caller: Caller, connections: Connections) -> None:
        super().__init__(caller)
        self.connections = connections

    def hold(self, size: int) -> None:
        self.holds = size
        self.connections.weigh(self)


def test_of_whoever_holds_most_the_heaviest_end_where_it_is_too_much_in_all() -> None:
    ann, *bobs = counted(1, 2, 2, 2)
    ann.hold(300)
    for it, size in zip(bobs, (100, 300, 250), strict=True):
        it.hold(size)
    assert not any(it.ended for it in (ann, *bobs))
    bobs[0].hold(200)
    assert [it.ended for it in (ann, *bobs)] == [False, False, True, True]


def test_what_has_been_taken_meanwhile_counts_no_more() -> None:
    ann, bob = counted(1, 2)
    ann.hold(900)
    ann.holds = 0
    bob.hold(900)
    assert not ann.ended
    assert not bob.ended


def test_what_has_ended_holds_nothing() -> None:
    ann, bob = counted(1, 2)
    ann.hold(900)
    ann.connections.remove(ann)
    ann.hold(900)  # it is told once more, by what was under way
    bob.hold(900)
    assert not bob.ended


@pytest.mark.parametrize("caller", [1, "192.0.2.1"], ids=["users", "the network"])
def test_users_and_the_network_leave_each_other_a_quarter(caller: Caller) -> None:
    other: Caller = "192.0.2.9" if caller == 1 else 9
    there = counted(*[caller] * 7, most=8)
    connections = there[0].connections
    assert [it.ended for it in there] == [True, *[False] * 6]
    assert connections.add(Held(other)) is None
    assert connections.add(Held(other)) is None
    assert sum(it.ended for it in there) == 1
    assert len(connections) == 8


def test_where_nobody_is_idle_who_does_not_take_his_answer_makes_room() -> None:
    there = counted(1, 1, "192.0.2.1", "192.0.2.2", most=4)
    for it in there:
        it.is_idle = False
    there[0].holds = 5  # his question
    there[1].is_stuck = True
    assert there[1].connections.add(Held("192.0.2.3")) is None
    assert [it.ended for it in there] == [False, True, False, False]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3))))
def test_what_is_counted_is_what_is_there(steps: list[tuple[bool, int]]) -> None:
    connections = Connections(Register(), most=1000, most_of_one=5)
    there: list[Connection] = []
    for comes, caller in steps:
        if comes:
            held = Held(caller)
            theirs = sum(it.caller == caller for it in there)
            assert (connections.add(held) is None) == (theirs < 5)
            there += [held] if theirs < 5 else []
        elif there:
            connections.remove(there.pop(caller % len(there)))
        assert len(connections) == len(there)
        assert connections._of.keys() == {it.caller for it in there}


def test_the_log_has_a_line_a_minute_of_each_kind(caplog: pytest.LogCaptureFixture) -> None:
    seconds = [0.0]
    register = Register(clock=lambda: seconds[0])
    for at in (0.0, 1.0, QUIET_SECONDS - 1.0, QUIET_SECONDS):
        seconds[0] = at
        register.note(TOO_MANY, 1000)
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("a connection of uid 1000 was closed: 1024 connections of this caller")
    assert "\n" not in first
    assert second == f"{first} (2 others, too, since this was last said)"
