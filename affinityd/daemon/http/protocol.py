"""HTTP/1.1 on one connection: uvicorn's, with limits, without bodies, one request at a time."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, parse_url
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from affinityd.daemon.http.connections import Connections
from affinityd.daemon.http.plan_heads import FindAnswer, PlanHead, PlanHeads, plan_head
from affinityd.daemon.http.refusals import (
    ANSWER_SECONDS,
    IDLE_SECONDS,
    MAX_HEAD,
    MAX_LINES,
    REQUEST_SECONDS,
    Refusal,
)
from affinityd.daemon.peers.connection import KEY, TCP, CallerKey, PeerConnection

log = logging.getLogger(__name__)

LARGE = 64 * 1024  #: bytes of an answer that is not taken: that caller's are weighed


class Protocol(HttpToolsProtocol):
    """One connection. Each request has it in its scope, and waits for its caller's turn.

    A request has no body, and none is read ahead of an answer: a client that sends more than a
    head gets one answer, and the connection is closed after it.
    """

    caller: CallerKey = TCP
    _peer: PeerConnection | None = None  #: of one that is not refused
    deadline = 0.0  #: of the awaited event: a request, or that an answer has been taken
    _received = 0  #: bytes of a request that has not ended
    _lines = 0  #: and its lines
    _has_begun = False  #: the last received data completed a request
    _is_new = True  #: no request has been answered yet
    _answered: PlanHead | None = None  #: from the cache, of the data that is being parsed

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections: Connections,
        find_answer: FindAnswer,
        heads: PlanHeads,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.app = self._ask_in_turn
        self._connections = connections
        self._find_answer = find_answer
        self._heads = heads

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin with a new connection, unless there are too many."""
        super().connection_made(transport)
        self._await(REQUEST_SECONDS)
        try:
            self._peer = PeerConnection(transport)
        except OSError:
            self._refuse(Refusal.FILES)
            return
        self.caller = self._peer.caller
        if refusal := self._connections.add(self):
            self._refuse(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection that has ended, once no request of it waits any more."""
        super().connection_lost(exc)
        if self._peer is not None:
            self._peer.close()
        self.app = self.config.loaded_app  # not a method of this object, which nothing then keeps
        if not self._is_under_way:
            self._connections.remove(self)

    @property
    def _is_under_way(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Parse the received part of a request."""
        if self._is_under_way:
            self._end_after_answer()
            return
        begins = not self._received
        if begins and self._is_answered_again(data):
            return
        self._received += len(data)
        self._lines += data.count(b"\n")
        if self._received > MAX_HEAD or self._lines > MAX_LINES:
            self._refuse(Refusal.HEAD_SIZE)
            return
        self._has_begun, self._answered = False, None
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade:
            self._end_after_answer()  # the rest is of another protocol
        except HttpParserError:
            if self._has_begun:
                self._end_after_answer()
            else:
                self._refuse(Refusal.MALFORMED)
        else:
            if begins and self._answered is not None:
                self._heads.put(data, self._answered)
        if begins and self._received:
            self._await(REQUEST_SECONDS)

    def on_message_begin(self) -> None:
        """Begin a request. Raises HttpParserError, which ends the parser, for a second one."""
        if self._has_begun:
            raise HttpParserError("a request came before the answer to the one before it")
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Wait for the end of the request: a body may come, which is refused."""

    def on_body(self, _body: bytes) -> None:
        """Refuse a body."""
        self._refuse(Refusal.BODY_SIZE)

    def on_message_complete(self) -> None:
        """Answer a complete request."""
        self._has_begun = True
        self._received = self._lines = 0
        if self.transport.is_closing():
            return
        try:
            self._answer()
        except Exception as error:  # noqa: BLE001 - the log has it
            self._refuse_for_bug(error)

    def _answer(self) -> None:
        self.scope["state"][KEY] = self._peer
        head = plan_head(self.url, self.headers, self.parser)
        if head is not None and self._is_answered_from_cache(head, self.scope):  # type: ignore[arg-type]
            self._answered = head
            return
        if self._has_path():
            self._await(ANSWER_SECONDS)
            super().on_headers_complete()
            super().on_message_complete()
        else:
            self._refuse(Refusal.MALFORMED)

    def _is_answered_again(self, data: bytes) -> bool:
        """Send an earlier answer to a request that came before in the same bytes, without parsing.

        The parser stands between two requests: nothing of this one has come before.
        """
        head = self._heads.get(data)
        if head is None or self.transport.is_closing():
            return False
        try:
            scope = {"headers": head.headers, "state": {KEY: self._peer}}
            return self._is_answered_from_cache(head, scope)
        except Exception as error:  # noqa: BLE001 - the log has it
            self._refuse_for_bug(error)
            return True

    def _is_answered_from_cache(self, head: PlanHead, scope: Scope) -> bool:
        """Send an earlier answer to the same plan request, without a task, and without the app."""
        if self.flow.write_paused:  # the app's answers wait until the last one is taken
            return False
        answer = self._find_answer(head.query, scope)
        if answer is None:
            return False
        begin = self._heads.answer_begin(self.server_state.default_headers)
        end = b"" if head.stays else b"connection: close\r\n"
        self.transport.write(b"".join((begin, end, answer)))
        if not head.stays:
            self.transport.close()
        self.on_response_complete()
        return True

    def _has_path(self) -> bool:
        """Whether the target is a URL with a path: http://localhost has none."""
        try:
            return self.url.isascii() and parse_url(self.url).path is not None
        except HttpParserError:
            return False

    async def _ask_in_turn(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the app in the caller's turn, unless the client has left; HEAD as GET.

        Of an answer to HEAD uvicorn leaves out the body.
        """
        cycle = self.cycle
        try:
            await self._connections.turn(self)
            if not cycle.disconnected:
                asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
                await self.config.loaded_app(asked, receive, send)
        except asyncio.CancelledError:  # the server ends, and has waited for long enough
            cycle.disconnected = True
            self.transport.abort()
        finally:
            if cycle.disconnected:
                self._connections.remove(self)

    def on_response_complete(self) -> None:
        """Wait for the next request, without uvicorn's timer, which costs as much as the rest."""
        self.server_state.total_requests += 1
        self._is_new = False
        # uvicorn keeps a request until the next one, and its types know no absence.
        self.url, self.headers = b"", []
        self.scope = self.cycle = None  # type: ignore[assignment]
        self._await(ANSWER_SECONDS if self.transport.is_closing() else IDLE_SECONDS)
        if self.transport.get_write_buffer_size() > LARGE:
            self._connections.weigh(self)

    def expire(self) -> None:
        """End a connection whose deadline has passed; an answer may still be taken."""
        if self.transport.is_closing() or self._is_under_way:
            self._connections.refusals.note(Refusal.ANSWER_TIME, self.caller)
            self.transport.abort()
        elif self._received:
            self._refuse(Refusal.HEAD_TIME)
        elif self._is_new:
            self._refuse(Refusal.SILENT)
        else:
            self._close()

    def _end_after_answer(self) -> None:
        """Close the connection after the answer: later data is not read."""
        if self._is_under_way:
            self.cycle.keep_alive = False
            self.flow.pause_reading()
        else:
            self._close()

    def _refuse_for_bug(self, error: Exception) -> None:
        log.error("a request could not be read: this is a bug", exc_info=error)
        self._refuse(Refusal.BUG)

    def _refuse(self, refusal: Refusal) -> None:
        if not self.transport.is_closing():  # else it has been refused, or answered
            self._connections.refusals.note(refusal, self.caller)
            self.transport.write(refusal.reply)
            self._close()

    def _close(self) -> None:
        self.transport.close()
        self._await(ANSWER_SECONDS)

    def _await(self, seconds: float) -> None:
        self.deadline = self.loop.time() + seconds
