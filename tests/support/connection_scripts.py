"""What happens on one connection: the daemon's HTTP against a transport that is none.

The server is uvicorn's, as installed: where a newer one no longer calls what is overridden, the
tests that tell such stories fail.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.types import Receive, Scope, Send

from affinityd.daemon.http.connections import Connections
from affinityd.daemon.http.plan_heads import FindAnswer
from affinityd.daemon.http.protocol import Protocol
from affinityd.daemon.http.refusals import RefusalLog
from affinityd.daemon.peers.connection import connection_of
from affinityd.daemon.servers import Server
from tests.support.servers import sweep

REQUEST = b"GET /plan HTTP/1.1\r\nhost: x\r\n\r\n"
END = b"\r\n\r\n"
DATE = (b"date", b"Mon, 01 Jan 2024 00:00:00 GMT")


class Address:
    """A TCP socket as far as it is asked."""

    family = socket.AF_INET

    def getsockname(self) -> tuple[str, int]:
        return "192.0.2.9", 9465

    def getpeername(self) -> tuple[str, int]:
        return "192.0.2.1", 4000


class Transport(asyncio.Transport):
    """Takes what is written, and passes nothing on."""

    def __init__(self) -> None:
        super().__init__({"socket": Address()})
        self.written = b""
        self.closed = self.aborted = False
        self.untaken = 0

    @property
    def statuses(self) -> list[int]:
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", self.written)]

    def write(self, data: Any) -> None:  # noqa: ANN401 - bytes of any kind
        self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        return self.untaken

    def pause_reading(self) -> None:
        """Nothing is read from it anyway."""

    def resume_reading(self) -> None:
        """As above."""

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True


def said(query: bytes, scope: Scope) -> bytes:
    """Return what is answered: all that an answer depends on."""
    connection = connection_of(scope)
    assert connection is not None
    accept = dict(scope["headers"]).get(b"accept", b"")
    return b"%b, %b, %b" % (query, accept, str(connection.caller).encode())


@dataclass
class Memory:
    """Remembers what would be answered to anything; how often it was asked."""

    asked: int = 0

    def __call__(self, query: bytes, scope: Scope) -> bytes:
        self.asked += 1
        body = said(query, scope)
        return b"content-length: %d\r\n\r\n%b" % (len(body), body)


def nothing(_query: bytes, _scope: Scope) -> None:
    """Remember nothing."""


@dataclass
class Story:
    """One connection, and what its server does."""

    reasons: Counter[str] = field(default_factory=Counter)
    most: int = 10
    asked: list[bytes] = field(default_factory=list)
    transport: Transport = field(default_factory=Transport)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    find_answer: FindAnswer = nothing

    def __post_init__(self) -> None:
        self.may_answer.set()
        log = RefusalLog(lambda reason: self.reasons.update([reason]))
        self.connections = Connections(log, most=self.most)
        self.server = Server(self, self.connections, self.find_answer)
        self.server.config.load()
        self.server.server_state.default_headers = [DATE]
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
        body = said(scope["query_string"], scope)
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

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

    def ends_after(self, seconds: float) -> bool:
        """Sweep just before, and just after; return whether the latter alone ended it."""
        self.after(seconds - 0.5)
        before = self.transport.aborted or (self.transport.closed and not self.transport.untaken)
        self.after(seconds + 0.1)
        return self.transport.closed and not before

    @property
    def statuses(self) -> list[int]:
        return self.transport.statuses

    @property
    def outcome(self) -> tuple[list[int], bool, dict[str, int]]:
        """What was answered, whether the connection has ended, and the refusals that counted."""
        return self.statuses, self.transport.closed, dict(self.reasons)


@asynccontextmanager
async def telling(**settings: Any) -> AsyncIterator[Story]:  # noqa: ANN401 - Story's
    """Yield a story on a new connection."""
    story = Story(**settings)
    try:
        yield story
    finally:
        story.protocol.flow.resume_writing()  # uvicorn waits for that though it is cancelled


def sent(*pieces: bytes, **settings: Any) -> Story:  # noqa: ANN401 - Story's
    """Send these pieces, one after the other."""

    async def run() -> Story:
        async with telling(**settings) as story:
            await story.send(*pieces)
        return story

    return asyncio.run(run())


def cut(data: bytes, seed: int) -> list[bytes]:
    """Return it in seven pieces or fewer, cut anywhere, and where a head ends rather."""
    drawn = random.Random(seed)  # noqa: S311 - no secret
    ends = [end.end() + near for end in re.finditer(END, data) for near in range(-4, 3)]
    near = [place for place in ends if place <= len(data)]
    cuts = sorted(drawn.choices(range(len(data) + 1), k=2) + drawn.choices(near or [0], k=4))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if b > a]
