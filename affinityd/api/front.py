"""Answers that were given before, in front of FastAPI's routing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from affinityd.cache import Cache
from affinityd.service import Answer

Key = tuple[bytes, bytes]

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
        is_current: Callable[[], bool],
        counter: Callable[[Answer], Callable[[], None]],
    ) -> None:
        """Take the app, whether the node is as it was last read, and what counts an answer."""
        self._app = app
        self._is_current = is_current
        self._counter = counter
        self._answers: Cache[Key, Remembered] = Cache(MAX_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as ASGI has it."""
        if scope["type"] == "http" and scope["path"] == "/plan" and scope["method"] == "GET":
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
        weight = len(answer.body) + sum(map(len, key)) + ENTRY_BYTES
        self._answers.put(key, remembered, weight)

    def forget(self) -> None:
        """Forget all answers: the node has changed."""
        self._answers.clear()


def key_of(scope: Scope) -> Key:
    """Return what an answer to a plan request depends on: its query and its Accept header."""
    for name, value in scope["headers"]:
        if name == b"accept":
            return scope["query_string"], value
    return scope["query_string"], b""


def _start(answer: Answer) -> Message:
    return {
        "type": "http.response.start",
        "status": 200,
        "headers": [
            (b"content-type", answer.media_type.encode()),
            (b"content-length", str(len(answer.body)).encode()),
        ],
    }
