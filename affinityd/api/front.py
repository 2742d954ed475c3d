"""Answers that were given before, in front of FastAPI's routing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from affinityd.service import Answer

Key = tuple[bytes, bytes]

MAX_ANSWERS = 4096
MAX_QUERY = 2048  #: bytes; a longer query is planned each time rather than kept


@dataclass(frozen=True)
class Remembered:
    """An answer, and the message that begins it."""

    answer: Answer
    start: Message


class Front:
    """Sends a remembered answer while the node is as it was, else asks the app."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        is_current: Callable[[], bool],
        count: Callable[[Answer, float], None],
    ) -> None:
        """Take the app, whether the node is as it was last read, and who counts the answers."""
        self._app = app
        self._is_current = is_current
        self._count = count
        self._answers: OrderedDict[Key, Remembered] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as ASGI has it."""
        if scope["type"] == "http" and scope["path"] == "/plan" and scope["method"] == "GET":
            began = perf_counter()
            remembered = self._answers.get(key_of(scope))
            if remembered is not None and self._is_current():
                answer = remembered.answer
                await send(remembered.start)
                await send({"type": "http.response.body", "body": answer.body})
                self._count(answer, perf_counter() - began)
                return
        await self._app(scope, receive, send)

    def remember(self, key: Key, answer: Answer) -> None:
        """Keep an answer for the same question, for as long as there is room."""
        if len(key[0]) <= MAX_QUERY:
            self._answers[key] = Remembered(answer, _start(answer))
            if len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)

    def forget(self) -> None:
        """Forget all answers: the node has changed."""
        self._answers.clear()


def key_of(scope: Scope) -> Key:
    """Return what an answer to a plan request depends on: its query and its Accept header."""
    accept = next((value for name, value in scope["headers"] if name == b"accept"), b"")
    return scope["query_string"], accept


def _start(answer: Answer) -> Message:
    return {
        "type": "http.response.start",
        "status": 200,
        "headers": [
            (b"content-type", answer.media_type.encode()),
            (b"content-length", str(len(answer.body)).encode()),
        ],
    }
