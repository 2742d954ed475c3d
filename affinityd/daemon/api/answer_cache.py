"""Answers that were given before, at hand before anything is routed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from affinityd.daemon.api.problems import problem
from affinityd.daemon.http.cached_response import CachedAnswer
from affinityd.daemon.http.fair_queue import Turns
from affinityd.daemon.http.receive_buffer import Header
from affinityd.daemon.peers.callers import CallerCpus, Callers
from affinityd.daemon.peers.connection import PeerConnection, connection_of
from affinityd.daemon.state.cache import Cache
from affinityd.daemon.state.plan_service import CPU_BYTES, Answer
from affinityd.errors import BusyError
from affinityd.text import quote

#: What an answer to a plan request depends on: its query, its Accept header, and who asks.
Key = tuple[bytes, bytes, CallerCpus | None]

CALLER = "caller"  #: where a plan request's scope has who asks, among its `state`

MAX_BYTES = 16 * 1024 * 1024  #: of answers and their questions
ENTRY_BYTES = 1024  #: what an entry weighs besides, about


class AnswerCache:
    """Asks the app, and remembers what it answered while the node is as it was."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        callers: Callers,
        is_current: Callable[[], bool],
        first_reading: Callable[[], Awaitable[None]],
        counter: Callable[[Answer], Callable[[], None]],
    ) -> None:
        """Take the app, who tells who asks, whether the node is as it was, what counts answers.

        `first_reading` returns once plans can be made, or when it is too late to wait for that.
        """
        self._app = app
        self._callers = callers
        self._is_current = is_current
        self._first_reading = first_reading
        self._counter = counter
        self._answers: Cache[Key, CachedAnswer] = Cache(MAX_BYTES)
        self._turns = Turns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI request; HEAD as GET, without its body, which the server leaves out."""
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        connection = connection_of(scope)
        if connection is not None:
            try:
                if scope["path"] == "/plan":
                    await self._first_reading()  # without a turn: others may have theirs meanwhile
                await self._turns.take(connection)
            except asyncio.CancelledError:  # a server that ends waits no longer
                detail = "this server is ending; try again in a moment"
                await problem(Request(scope), 503, BusyError.title, detail)(scope, receive, send)
                return
            if connection.has_gone:
                return
        if not scope["path"].isprintable():  # to a route "/plan\n" is "/plan"
            detail = f"{scope['method']} {quote(scope['path'])} is not answered here"
            await problem(Request(scope), 404, "Not Found", detail)(scope, receive, send)
            return
        if scope["path"] == "/plan" and scope["method"] == "GET":
            try:
                facts = self._callers.facts(connection)
            except BusyError as error:
                answer = problem(Request(scope), error.status, error.title, str(error))
                await answer(scope, receive, send)
                return
            scope.setdefault("state", {})[CALLER] = facts
        await self._app(scope, receive, send)

    def remembered(
        self, query: bytes, headers: Iterable[Header], connection: PeerConnection
    ) -> CachedAnswer | None:
        """Return the answer to a plan request that was given before; None: ask the app."""
        try:
            facts = self._callers.facts(connection)
        except BusyError:  # which the app will say
            return None
        found = self._answers.get((query, _accept(headers), facts))
        return found if found is not None and self._is_current() else None

    def remember(self, key: Key, answer: Answer) -> None:
        """Keep an answer for the same question, as long as there is room."""
        headers = f"content-type: {answer.media_type}\r\ncontent-length: {len(answer.body)}\r\n"
        remembered = CachedAnswer(headers.encode(), answer.body, self._counter(answer))
        query, accept, facts = key
        weight = len(answer.body) + len(query) + len(accept) + ENTRY_BYTES
        if facts is not None:
            weight += CPU_BYTES * len(facts.mask) + len(facts.cpuset)
        self._answers.put(key, remembered, weight)

    def forget(self) -> None:
        """Forget all answers: the node has changed."""
        self._answers.clear()


def key_of(scope: Scope) -> Key:
    """Return what an answer to a plan request depends on."""
    return scope["query_string"], _accept(scope["headers"]), scope["state"][CALLER]


def _accept(headers: Iterable[Header]) -> bytes:
    return next((value for name, value in headers if name == b"accept"), b"")
