"""HTTP/1.1 on one connection, as the daemon speaks it: so much, so long, one request at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from affinityd.api.connections import Connections
from affinityd.api.front import Header, Remembered
from affinityd.api.head import Head, is_whole
from affinityd.api.peer import KEY, Connection
from affinityd.api.refusals import (
    ANSWER_SECONDS,
    ANSWER_TOO_SLOW,
    BODY_TOO_LARGE,
    BODY_WITHOUT_LENGTH,
    HEAD_SECONDS,
    HEAD_TOO_LARGE,
    HEAD_TOO_SLOW,
    IDLE_SECONDS,
    MALFORMED,
    MAX_BODY,
    SILENT,
    Caller,
    Refusal,
)

#: Returns what was answered to a plan request before: its query, its headers, who asks.
Remember = Callable[[bytes, list[Header], Connection], Remembered | None]

LARGE = 16 * 1024  #: bytes of an answer; smaller ones count when all are weighed, once a second
OK = b"HTTP/1.1 200 OK\r\n"
CLOSE = b"connection: close\r\n"


class RefusedError(Exception):
    """Raised in the parser's callbacks: it ends as its other errors do, in `send_400_response`."""


class Protocol(HttpToolsProtocol):
    """uvicorn's, with limits, and with the connection in the scope of each of its requests.

    What is received is cut where a head or a body ends, and nothing is read ahead of an answer.
    """

    caller: Caller = ""
    deadline = 0.0  #: of what is awaited: a head, or that an answer has been taken
    held = 0  #: bytes that `Connections` has noted
    _held = b""  #: received, and not read yet
    _head: Head | None = None  #: one that has not ended
    _body = 0  #: bytes of a body that are still to come
    _is_new = True  #: nothing has been answered yet
    _lets_others = False  #: go on before the next request is read
    _refusal = MALFORMED  #: what a parser's error is answered with

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections: Connections,
        remembered: Remember,
    ) -> None:
        """Take what uvicorn gives, where connections are counted, and what was answered before."""
        super().__init__(config, server_state, app_state, _loop)
        self._connections = connections
        self._remembered = remembered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin with a new connection, unless there are too many."""
        super().connection_made(transport)
        self._connection = Connection(transport)
        self.caller = self._connection.whose
        self.deadline = self.loop.time() + HEAD_SECONDS
        if refusal := self._connections.add(self):
            self._refuse(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection that has ended."""
        super().connection_lost(exc)
        self._connections.remove(self)
        self._held = b""

    @property
    def holds(self) -> int:
        """Bytes that lie here: received and not answered, answered and not taken."""
        head = self._head.size if self._head else 0
        return len(self._held) + head + self.transport.get_write_buffer_size()

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for an answer."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Read what has come, as far as it is its turn."""
        if self._is_whole_head(data):  # as nearly always
            super().data_received(data)
        else:
            self._held += data
            self._read()
            self._connections.weigh(self)

    def on_headers_complete(self) -> None:
        """Begin to answer. Raises RefusedError for a body that is not wanted."""
        self._head = None
        self.deadline = self.loop.time() + ANSWER_SECONDS
        self._body = self._announced_body()
        if self._is_answered_at_once():
            return
        self.scope["state"][KEY] = self._connection
        super().on_headers_complete()
        if self.parser.should_upgrade() or (self._body and self.expect_100_continue):
            self.cycle.keep_alive = False  # what comes then may be no request

    def on_message_complete(self) -> None:
        """End a request."""
        if self.cycle is not None:  # else it has been answered
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, or go on with one that has come meanwhile.

        This is uvicorn's without its timer, which costs as much as all that is added here, and
        without its queue of requests.
        """
        self._note_answered()
        self._connections.weigh(self)
        self.flow.resume_reading()
        if self._held:
            self._read()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's word for all errors
        """Answer what the parser did not take."""
        self._refuse(self._refusal)

    def expire(self) -> None:
        """End a connection whose deadline has passed."""
        if self.transport.is_closing() or not self.is_idle:
            self._connections.register.note(ANSWER_TOO_SLOW, self.caller)
            self.end()
        elif self._head:
            self._refuse(HEAD_TOO_SLOW)
        elif self._is_new:
            self._refuse(SILENT)
        else:
            self.transport.close()
        self.deadline += ANSWER_SECONDS - IDLE_SECONDS  # for what has not been taken of an answer

    def end(self) -> None:
        """End it at once, with whatever is under way."""
        self.transport.abort()

    def _is_whole_head(self, data: bytes) -> bool:
        """Return whether this is one head, all of it and nothing else, and it is its turn."""
        is_its_turn = self.cycle is None or self.cycle.response_complete
        return is_its_turn and not (self._held or self._head or self._body) and is_whole(data)

    def _read(self) -> None:
        """Read heads and bodies; the next head when the last one is answered."""
        while self._held and not self.transport.is_closing():
            if self._body:
                self._feed(min(len(self._held), self._body))
            elif self.is_idle and not self._lets_others:
                self._read_head()
            else:
                self.flow.pause_reading()
                return

    def _go_on(self) -> None:
        """Read on, now that others have had their turn."""
        self._lets_others = False
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._read()

    def _read_head(self) -> None:
        """Read a head, or as much of it as there is."""
        if self._head is None:
            self._head = Head()
            if not self._is_new:  # the first began with the connection
                self.deadline = self.loop.time() + HEAD_SECONDS
        size = self._head.take(self._held)
        if self._head.is_too_large:
            self._refuse(HEAD_TOO_LARGE)
            return
        self._feed(size)

    def _feed(self, size: int) -> None:
        """Have so many bytes parsed."""
        data, self._held = self._held[:size], self._held[size:]
        if self._body:
            self._body -= size
        super().data_received(data)

    def _is_answered_at_once(self) -> bool:
        """Send what was answered to the same before, if that is all it takes.

        That spares a task, and all that an app does to find out what it is asked.
        """
        path, _, query = self.url.partition(b"?")
        is_plain = self.parser.get_method() == b"GET" and self.parser.get_http_version() == "1.1"
        if path != b"/plan" or b"#" in query or not is_plain or self._body:
            return False
        if self.flow.write_paused or self.parser.should_upgrade():
            return False
        answer = self._remembered(query, self.headers, self._connection)
        if answer is None:
            return False
        stays = self.parser.should_keep_alive()
        more = b"".join(b"%b: %b\r\n" % it for it in self.server_state.default_headers)
        ends = b"\r\n" if stays else CLOSE + b"\r\n"
        self.transport.write(b"".join((OK, more, answer.headers, ends, answer.body)))
        answer.count()
        self._note_answered()
        if len(answer.body) > LARGE:
            self._connections.weigh(self)
        if self._held:
            self._lets_others = True
            self.loop.call_soon(self._go_on)
        if not stays:
            self.transport.close()
        return True

    def _note_answered(self) -> None:
        self._is_new = False
        self.server_state.total_requests += 1
        self.deadline = self.loop.time() + IDLE_SECONDS

    def _announced_body(self) -> int:
        """Return how many bytes a body will have. Raises RefusedError."""
        for name, value in self.headers:
            if name == b"transfer-encoding":
                self._refusal = BODY_WITHOUT_LENGTH
                raise RefusedError
            if name == b"content-length" and int(value) > MAX_BODY:
                self._refusal = BODY_TOO_LARGE
                raise RefusedError
            if name == b"content-length":
                return int(value)
        return 0

    def _refuse(self, refusal: Refusal) -> None:
        self._connections.register.note(refusal, self.caller)
        self.transport.write(refusal.reply)
        self.transport.close()
