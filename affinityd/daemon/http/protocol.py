"""HTTP/1.1 on one connection, as the daemon speaks it: so much, so long, one request at a time."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, parse_url
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from affinityd.daemon.http.cached_response import FindAnswer
from affinityd.daemon.http.connections import Connections
from affinityd.daemon.http.receive_buffer import Inbox, announced_body
from affinityd.daemon.http.refusals import (
    ANSWER_SECONDS,
    ANSWER_TOO_SLOW,
    BUG,
    HEAD_SECONDS,
    HEAD_TOO_LARGE,
    HEAD_TOO_SLOW,
    IDLE_SECONDS,
    MALFORMED,
    SILENT,
    Refusal,
    RefusedError,
)
from affinityd.daemon.peers.caller_key import CallerKey
from affinityd.daemon.peers.connection import KEY, PeerConnection

log = logging.getLogger(__name__)

COPIES = 3  #: of a request that is under way: its URL and headers as they are, and in its scope
LARGE = 16 * 1024  #: bytes of an answer; smaller ones count when all are weighed, once a second


class Protocol(HttpToolsProtocol):
    """uvicorn's, with limits, and with the connection in the scope of each of its requests.

    What is received is cut where a head or a body ends, and nothing is read ahead of an answer.
    """

    caller: CallerKey = ""
    deadline = 0.0  #: of what is awaited: a head, or that an answer has been taken
    held = 0  #: bytes that `Connections` has noted
    _is_new = True  #: nothing has been answered yet
    _trouble: Exception | None = None  #: what kept a request from its answer

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections: Connections,
        remembered: FindAnswer,
    ) -> None:
        """Take what uvicorn gives, where connections are counted, and what was answered before."""
        super().__init__(config, server_state, app_state, _loop)
        self._connections = connections
        self._remembered = remembered
        self._inbox = Inbox()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin with a new connection, unless there are too many."""
        super().connection_made(transport)
        self._connection = PeerConnection(transport)
        self.caller = self._connection.whose
        self.deadline = self.loop.time() + HEAD_SECONDS
        if refusal := self._connections.add(self):
            self._refuse(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection that has ended."""
        super().connection_lost(exc)
        self._connection.leave()
        self._connections.remove(self)
        self._inbox.clear()

    @property
    def holds(self) -> int:
        """Bytes that lie here: received and not answered, answered and not taken."""
        asked = 0 if self._has_answered else self._inbox.last * COPIES
        return self._inbox.holds + asked + self.transport.get_write_buffer_size()

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for an answer."""
        return self._has_answered and self._inbox.is_empty

    @property
    def is_stuck(self) -> bool:
        """Whether an answer lies here that is not taken."""
        return self.transport.get_write_buffer_size() > 0

    @property
    def _has_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def _is_its_turn(self) -> bool:
        """Whether the next request may be read: none is under way, and the answers are taken."""
        return self._has_answered and not self.flow.write_paused

    def data_received(self, data: bytes) -> None:
        """Read what has come, as far as it is its turn."""
        if self._is_its_turn and self._inbox.pass_whole(data):
            self._parse(data)
        else:
            self._inbox.add(data)
            self._read()
            self._connections.weigh(self)

    def on_headers_complete(self) -> None:
        """Begin to answer. Raises what keeps it from that, and the parser something of its own."""
        try:
            self._begin()
        except Exception as error:
            self._trouble = error
            raise

    def _begin(self) -> None:
        """Raise RefusedError for what is not asked so."""
        self.deadline = self.loop.time() + ANSWER_SECONDS
        body = announced_body(self.headers)
        if isinstance(body, Refusal):
            raise RefusedError(body)
        self._inbox.end_head(body)
        if self._is_answered_at_once():
            return
        if not self.url.isascii() or parse_url(self.url).path is None:  # as of http://localhost
            raise RefusedError(MALFORMED)
        self.scope["state"][KEY] = self._connection
        super().on_headers_complete()
        if self.parser.should_upgrade() or (body and self.expect_100_continue):
            self.cycle.keep_alive = False  # what comes then may be no request
            self._inbox.body = 0
        self._connections.weigh(self)

    def on_body(self, body: bytes) -> None:
        """Pass over a body, which nobody reads."""

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
        self._read()

    def resume_writing(self) -> None:
        """Go on with what was asked meanwhile: the client has taken what was answered."""
        super().resume_writing()
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._read()

    def expire(self) -> None:
        """End a connection whose deadline has passed."""
        if self.transport.is_closing() or not self.is_idle:
            self._connections.register.note(ANSWER_TOO_SLOW, self.caller)
            self.end()
        elif self._inbox.is_amid_head:
            self._refuse(HEAD_TOO_SLOW)
        elif self._is_new:
            self._refuse(SILENT)
        else:
            self.transport.close()
        self.deadline += ANSWER_SECONDS - IDLE_SECONDS  # for what has not been taken of an answer

    def end(self) -> None:
        """End it at once, with whatever is under way."""
        self.transport.abort()

    def _read(self) -> None:
        """Read heads and bodies; the next head when the last one is answered."""
        while not (self._inbox.is_empty or self.transport.is_closing()):
            if not (self._inbox.body or self._is_its_turn):
                self.flow.pause_reading()
                if self._has_answered:
                    self.deadline = self.loop.time() + ANSWER_SECONDS
                return
            if not (self._inbox.body or self._inbox.is_amid_head or self._is_new):
                self.deadline = self.loop.time() + HEAD_SECONDS  # the first's is the connection's
            data = self._inbox.take()
            if self._inbox.is_too_large:
                self._refuse(HEAD_TOO_LARGE)
                return
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Parse what has come, and refuse what cannot be parsed."""
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade:
            pass  # it is answered as if it had not asked for that
        except HttpParserError as error:
            self._refuse(_refusal(self._trouble or error))

    def _is_answered_at_once(self) -> bool:
        """Send what was answered to the same before, if that is all it takes.

        That spares a task, and all that an app does to find out what it is asked.
        """
        path, _, query = self.url.partition(b"?")
        is_plain = self.parser.get_method() == b"GET" and self.parser.get_http_version() == "1.1"
        is_last = self._inbox.is_empty and not self._inbox.body  # others come before what follows
        if path != b"/plan" or b"#" in query or not (is_plain and is_last):
            return False
        if self.parser.should_upgrade():
            return False
        answer = self._remembered(query, self.headers, self._connection)
        if answer is None:
            return False
        stays = self.parser.should_keep_alive()
        self.transport.write(answer.reply(self.server_state.default_headers, stays=stays))
        answer.count()
        if not stays:
            self.transport.close()
        self._note_answered()
        if len(answer.body) > LARGE:
            self._connections.weigh(self)
        return True

    def _note_answered(self) -> None:
        self._is_new = False
        # uvicorn keeps what was asked until more is, and types none of it as absent.
        self.url, self.headers = b"", []
        self.scope = self.cycle = None  # type: ignore[assignment]
        self.server_state.total_requests += 1
        seconds = ANSWER_SECONDS if self.transport.is_closing() else IDLE_SECONDS
        self.deadline = self.loop.time() + seconds

    def _refuse(self, refusal: Refusal) -> None:
        self._connections.register.note(refusal, self.caller)
        self.transport.write(refusal.reply)
        self.transport.close()


def _refusal(error: Exception) -> Refusal:
    """Return what is said to one whose request ended in an error of a callback."""
    if isinstance(error, RefusedError):
        return error.refusal
    if isinstance(error, HttpParserError):
        return MALFORMED
    log.error("a request could not be read: this is a bug", exc_info=error)
    return BUG
