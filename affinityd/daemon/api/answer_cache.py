"""The cache of plan answers, which is read before a request is routed."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Scope

from affinityd.daemon.api.rank_query import JobQuery, job_and_rank
from affinityd.daemon.peers.callers import Callers
from affinityd.daemon.state.cache import Cache
from affinityd.daemon.state.plan_service import CPU_BYTES, Answer, PlannedJob
from affinityd.errors import BusyError
from affinityd.request.resolve import Caller

#: The inputs of an answer to a plan request: the node's generation, the request's query and
#: Accept header, and its caller.
Key = tuple[int, bytes, bytes, Caller | None]
JobKey = tuple[int, JobQuery, bytes, Caller | None]

#: Its own headers, a line each, an empty line and its body; and its counter.
Remembered = tuple[bytes, Callable[[], None]]

MAX_BYTES = 16 * 1024 * 1024  #: of answers and their questions
MAX_JOB_BYTES = 4 * 1024 * 1024  #: of planned jobs, from which their other ranks are answered
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
        self._jobs: Cache[JobKey, PlannedJob] = Cache(MAX_JOB_BYTES)

    def find(self, query: bytes, scope: Scope) -> bytes | None:
        """Return, and count, the answer to a plan request that needs no plan; None: call the app.

        It is an earlier one, or that of another rank of a job that has been planned.

        The scope has the headers and, from here on, the caller.
        """
        try:
            key = self._key(query, scope)
        except BusyError:  # which the app will say
            return None
        found = None if key is None else self._answers.get(key) or self._of_job(key)
        if found is None:
            return None
        answer, count = found
        count()
        return answer

    def remember(self, scope: Scope, answer: Answer, job: PlannedJob | None = None) -> None:
        """Keep an answer for the same question, and its job for the other ranks' questions.

        They are kept as long as there is room. In the job's query nothing but `rank` depends on
        the rank.
        """
        key = self._key(scope["query_string"], scope)
        if key is None:
            return
        self._put(key, answer)
        if job is not None and (parts := job_and_rank(key[1])):
            generation, query, accept, caller = key
            weight = len(query) + len(accept) + ENTRY_BYTES + job.weight
            self._jobs.put((generation, parts[0], accept, caller), job, weight)

    def _of_job(self, key: Key) -> Remembered | None:
        """Return the answer to a rank of a job that has been planned."""
        generation, query, accept, caller = key
        parts = job_and_rank(query)
        job = self._jobs.get((generation, parts[0], accept, caller)) if parts else None
        answer = job.answer(parts[1]) if job and parts else None
        return None if answer is None else self._put(key, answer)

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
