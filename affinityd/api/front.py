"""Answers that were given before, in front of FastAPI's routing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from affinityd.api.callers import Callers, Facts
from affinityd.api.peer import connection_of
from affinityd.api.problems import problem
from affinityd.cache import Cache
from affinityd.errors import BusyError, quote
from affinityd.service import CPU_BYTES, Answer

#: What an answer to a plan request depends on: its query, its Accept header, and who asks.
Key = tuple[bytes, bytes, Facts | None]

WHO = "caller"  #: where a plan request's scope has who asks, among its `state`

MAX_BYTES = 16 * 1024 * 1024  #: of answers and their questions
ENTRY_BYTES = 1024  #: what an entry weighs besides, about


@dataclass(frozen=True)
class Remembered:
    """An answer as ASGI messages, and how it is counted."""

    start: Message
    body: Message
    count: Callable[[], None]


class Front:
    """Sends a remembered answer while the node is as it was, else asks the app."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        callers: Callers,
        is_current: Callable[[], bool],
        counter: Callable[[Answer], Callable[[], None]],
    ) -> None:
        """Take the app, who tells who asks, whether the node is as it was, what counts answers."""
        self._app = app
        self._callers = callers
        self._is_current = is_current
        self._counter = counter
        self._answers: Cache[Key, Remembered] = Cache(MAX_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as ASGI has it."""
        if not scope["path"].isprintable():  # to a route "/plan\n" is "/plan"
            detail = f"{scope['method']} {quote(scope['path'])} is not answered here"
            await problem(Request(scope), 404, "Not Found", detail)(scope, receive, send)
            return
        if scope["path"] == "/plan" and scope["method"] == "GET":
            try:
                facts = self._callers.facts(connection_of(scope))
            except BusyError as error:
                answer = problem(Request(scope), error.status, error.title, str(error))
                await answer(scope, receive, send)
                return
            scope.setdefault("state", {})[WHO] = facts
            remembered = self._answers.get(key_of(scope))
            if remembered is not None and self._is_current():
                await send(remembered.start)
                await send(remembered.body)
                remembered.count()
                return
        await self._app(scope, receive, send)

    def remember(self, key: Key, answer: Answer) -> None:
        """Keep an answer for the same question, as long as there is room."""
        body: Message = {"type": "http.response.body", "body": answer.body}
        remembered = Remembered(_start(answer), body, self._counter(answer))
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
    for name, value in scope["headers"]:
        if name == b"accept":
            return scope["query_string"], value, scope["state"][WHO]
    return scope["query_string"], b"", scope["state"][WHO]


def _start(answer: Answer) -> Message:
    return {
        "type": "http.response.start",
        "status": 200,
        "headers": [
            (b"content-type", answer.media_type.encode()),
            (b"content-length", str(len(answer.body)).encode()),
        ],
    }
