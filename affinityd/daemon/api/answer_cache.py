"""Plan answers that were given before, found before anything is routed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from starlette.types import Scope

from affinityd.daemon.peers.callers import Callers
from affinityd.daemon.state.cache import Cache
from affinityd.daemon.state.plan_service import CPU_BYTES, Answer
from affinityd.errors import BusyError
from affinityd.request.resolve import Caller

#: What an answer to a plan request depends on: its query, its Accept header, and its caller.
Key = tuple[bytes, bytes, Caller | None]

#: Its own headers, a line each, an empty line and its body; and what counts it once more.
Remembered = tuple[bytes, Callable[[], None]]

MAX_BYTES = 16 * 1024 * 1024  #: of answers and their questions
ENTRY_BYTES = 1024  #: what an entry weighs besides, about


class AnswerCache:
    """Remembers answers while the node is as it was."""

    def __init__(
        self,
        callers: Callers,
        *,
        is_current: Callable[[], bool],
        counter: Callable[[Answer], Callable[[], None]],
    ) -> None:
        """Take what knows callers, whether the node is as it was, and what counts answers."""
        self.callers = callers
        self._is_current = is_current
        self._counter = counter
        self._answers: Cache[Key, Remembered] = Cache(MAX_BYTES)

    def find(self, query: bytes, scope: Scope) -> bytes | None:
        """Return, and count, the answer to a plan request that was given before; None: ask the app.

        The scope has the headers and, from here on, the caller.
        """
        try:
            caller = self.callers.of_request(scope)
        except BusyError:  # which the app will say
            return None
        found = self._answers.get((query, _accept(scope["headers"]), caller))
        if found is None or not self._is_current():
            return None
        answer, count = found
        count()
        return answer

    def remember(self, scope: Scope, answer: Answer) -> None:
        """Keep an answer for the same question, as long as there is room."""
        size = len(answer.body)
        headers = f"content-type: {answer.media_type}\r\ncontent-length: {size}\r\n\r\n"
        remembered = (headers.encode() + answer.body, self._counter(answer))
        query, accept = scope["query_string"], _accept(scope["headers"])
        caller = self.callers.of_request(scope)
        weight = size + len(query) + len(accept) + ENTRY_BYTES
        if caller is not None:
            weight += CPU_BYTES * (len(caller.mask) + len(caller.cpuset or ()))
        self._answers.put((query, accept, caller), remembered, weight)

    def forget(self) -> None:
        """Forget all answers: the node has changed."""
        self._answers.clear()


def _accept(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return next((value for name, value in headers if name == b"accept"), b"")
