"""Connections that get no answer to what they ask, because of how they ask: one line each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from affinityd.daemon.peers.caller_key import CallerKey

log = logging.getLogger(__name__)

MAX_HEAD = 64 * 1024  #: bytes, from a request line's first to the empty line's last
MAX_LINES = 256  #: of a head
MAX_BODY = 64 * 1024  #: bytes; what a body has is not looked at
MOST_OF_ONE = 1024  #: connections at once, of one uid or address
MOST_IN_ALL = 4096  #: connections, where there are files for as many
MOST_HELD = (
    64 * 1024 * 1024
)  #: bytes, in all: of requests that have not ended, of answers not taken
HEAD_SECONDS = 10  #: from a connection, or a head's first byte, to its last
IDLE_SECONDS = 5  #: between an answer and the next request
ANSWER_SECONDS = 60  #: from a head's last byte to the moment when the client has the answer

QUIET_SECONDS = 60  #: between two lines of the log about the same kind of refusal


@dataclass(frozen=True)
class Refusal:
    """A kind of refusal: what metrics call it, what the client is told, and what would be right.

    One without a status is not told: nothing was asked, or an answer is under way.
    """

    reason: str
    status: int | None
    line: str

    @property
    def reply(self) -> bytes:
        """The answer, after which the connection is closed."""
        if self.status is None:
            return b""
        body = f"{self.line}\n"
        head = (
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            "content-type: text/plain; charset=utf-8",
            f"content-length: {len(body)}",
            "connection: close",
        )
        return "\r\n".join((*head, "", body)).encode()


class RefusedError(Exception):
    """A request is refused."""

    def __init__(self, refusal: Refusal) -> None:
        """Take what it is told."""
        super().__init__(refusal.line)
        self.refusal = refusal


MALFORMED = Refusal(
    "malformed", 400, "this is no HTTP/1.1 request; send one like GET /plan?gpus=0 HTTP/1.1"
)
HEAD_TOO_LARGE = Refusal(
    "head_size",
    431,
    f"the request line and headers are more than {MAX_HEAD} bytes or {MAX_LINES} lines; send less",
)
HEAD_TOO_SLOW = Refusal(
    "head_time",
    408,
    f"the request line and headers took more than {HEAD_SECONDS} s; send them at once",
)
BODY_TOO_LARGE = Refusal(
    "body_size", 413, f"the body is more than {MAX_BODY} bytes; send none: it is not read"
)
BODY_WITHOUT_LENGTH = Refusal(
    "body_length", 411, "the body comes without Content-Length; send none: it is not read"
)
BUG = Refusal("bug", 500, "the daemon has failed; its log says how")
TOO_MANY = Refusal(
    "caller",
    503,
    f"{MOST_OF_ONE} connections of this caller are open, which is the most; close some",
)
NO_ROOM = Refusal("files", 503, "the daemon has no room for one more connection; try again later")
SILENT = Refusal("silent", None, f"nothing was asked for {HEAD_SECONDS} s")
ANSWER_TOO_SLOW = Refusal(
    "answer_time", None, f"no answer was given, and taken, within {ANSWER_SECONDS} s"
)
REPLACED = Refusal("replaced", None, "nobody waited for its answer, and another had no room")

OVERWEIGHT = Refusal(
    "bytes", None, f"what it had sent, or not taken, was part of more than {MOST_HELD} bytes"
)

REASONS = tuple(
    refusal.reason
    for refusal in (
        *(TOO_MANY, NO_ROOM, REPLACED, OVERWEIGHT),
        *(HEAD_TOO_LARGE, HEAD_TOO_SLOW, SILENT),
        *(BODY_TOO_LARGE, BODY_WITHOUT_LENGTH, MALFORMED, BUG, ANSWER_TOO_SLOW),
    )
)


class RefusalLog:
    """Counts refusals, and has the log say who was refused: a line a minute of each kind."""

    def __init__(
        self,
        counters: Mapping[str, Callable[[], None]] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take what counts one more, by its reason, and seconds that pass."""
        self._counters = counters or {}
        self._clock = clock
        self._told: dict[str, float] = {}
        self._untold: dict[str, int] = {}

    def note(self, refusal: Refusal, caller: CallerKey) -> None:
        """Note that a caller was refused."""
        reason, now = refusal.reason, self._clock()
        if count := self._counters.get(reason):
            count()
        if reason in self._told and now < self._told[reason] + QUIET_SECONDS:
            self._untold[reason] = self._untold.get(reason, 0) + 1
            return
        self._told[reason] = now
        others = self._untold.pop(reason, 0)
        log.warning(
            "a connection of %s was closed: %s%s",
            f"uid {caller}" if isinstance(caller, int) else caller or "nobody that is known",
            refusal.line,
            f" ({others} others, too, since this was last said)" if others else "",
        )
