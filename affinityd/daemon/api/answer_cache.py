"""The cache of plan answers, which is read before a request is routed."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Scope

from affinityd.daemon.peers.callers import Callers
from affinityd.daemon.state.cache import Cache
from affinityd.daemon.state.plan_service import Answer
from affinityd.errors import BusyError
from affinityd.request.resolve import Caller

#: The inputs of an answer to a plan request: the node's generation, the request's query and
#: Accept header, and its caller.
Key = tuple[int, bytes, bytes, Caller | None]

#: Its own headers, a line each, an empty line and its body; and its counter.
Remembered = tuple[bytes, Callable[[], None]]

MAX_BYTES = 16 * 1024 * 1024  #: of answers and their questions
CPU_BYTES = 128  #: an element of a set, about
ENTRY_BYTES = 1024  #: the rest of an entry, about


class AnswerCache:
    """Remembers answers while the node is as it was."""

    def __init__(
        self,
        callers: Callers,
        *,
        generation: Callable[[], int | None],
        counter: Callable[[Answer], Callable[[], None]],
    ) -> None:
        """Take the sources of callers and of the node's generation, and the counter of answers.

        The generation is None while the node differs from its last reading.
        """
        self.callers = callers
        self._generation = generation
        self._counter = counter
        self._answers: Cache[Key, Remembered] = Cache(MAX_BYTES)

    def find(self, query: bytes, scope: Scope) -> bytes | None:
        """Return, and count, the earlier answer to a plan request; None: call the app.

        The scope has the headers and, from here on, the caller.
        """
        try:
            key = self._key(query, scope)
        except BusyError:  # which the app will say
            return None
        found = None if key is None else self._answers.get(key)
        if found is None:
            return None
        answer, count = found
        count()
        return answer

    def remember(self, scope: Scope, answer: Answer) -> None:
        """Keep an answer for the same question, as long as there is room."""
        key = self._key(scope["query_string"], scope)
        if key is not None:
            self._put(key, answer)

    def _put(self, key: Key, answer: Answer) -> Remembered:
        size = len(answer.body)
        headers = f"content-type: {answer.media_type}\r\ncontent-length: {size}\r\n\r\n"
        _, query, accept, caller = key
        weight = size + len(query) + len(accept) + ENTRY_BYTES
        if caller is not None:
            weight += CPU_BYTES * (len(caller.mask) + len(caller.cpuset or ()))
        kept = headers.encode() + answer.body, self._counter(answer)
        self._answers.put(key, kept, weight)
        return kept

    def _key(self, query: bytes, scope: Scope) -> Key | None:
        caller, generation = self.callers.of_request(scope), self._generation()
        if generation is None:
            return None
        accept = next((value for name, value in scope["headers"] if name == b"accept"), b"")
        return generation, query, accept, caller
