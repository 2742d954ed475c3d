"""Refusals: connections closed without an answer, by reason, counted and logged."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from enum import Enum
from http import HTTPStatus
from math import inf

from affinityd.daemon.peers.connection import TCP, CallerKey

log = logging.getLogger(__name__)

MAX_HEAD = 64 * 1024  #: bytes, from a request line's first to the empty line's last
MAX_LINES = 256  #: of a head
LARGEST_HEAD = f"{MAX_HEAD} bytes or {MAX_LINES} lines"
MOST_OF_ONE = 1024  #: connections at once of one caller
MOST_IN_ALL = 4096  #: connections, where there are files for as many
MOST_UNTAKEN = 64 * 1024 * 1024  #: bytes of answers that one caller has not taken
REQUEST_SECONDS = 10  #: from a connection, or a request's first byte, to the request's last
IDLE_SECONDS = 5  #: between an answer and the next request
ANSWER_SECONDS = 60  #: from a request's last byte to the moment when the client has the answer

QUIET_SECONDS = 60  #: between two lines of the log about the same kind of refusal


class Refusal(Enum):
    """Why a connection is closed: the limit, as in metrics; its status, and the line.

    Without a status the client gets no answer: it requested nothing, or an answer is under way.
    """

    CALLER = 503, "this caller has the largest allowed number of connections open; close some"
    FILES = 503, "the daemon has its largest number of connections open; try again later"
    BYTES = None, f"this caller has more than {MOST_UNTAKEN} bytes of answers that it has not read"
    HEAD_SIZE = 431, f"the request line and headers are more than {LARGEST_HEAD}; send less"
    HEAD_TIME = 408, f"the request took more than {REQUEST_SECONDS} s; send it at once"
    SILENT = None, f"no request came for {REQUEST_SECONDS} s"
    BODY_SIZE = 413, "the request has a body; send none: it is not read"
    MALFORMED = 400, "this is not an HTTP/1.1 request; send one like GET /plan?gpus=0 HTTP/1.1"
    BUG = 500, "the daemon has failed; its log says how"
    ANSWER_TIME = None, f"no answer was given and read within {ANSWER_SECONDS} s"

    def __init__(self, status: int | None, line: str) -> None:
        self.reason = self.name.lower()
        self.status = status
        self.line = line

    @property
    def reply(self) -> bytes:
        """The answer, after which the connection is closed."""
        if self.status is None:
            return b""
        return (
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}\r\n"
            "content-type: text/plain; charset=utf-8\r\n"
            f"content-length: {len(self.line) + 1}\r\n"
            f"connection: close\r\n\r\n{self.line}\n"
        ).encode()


class RefusalLog:
    """Counts refusals, and logs whose connection it was: a line a minute of each kind."""

    def __init__(self, count: Callable[[str], None]) -> None:
        """Take the counter, by reason."""
        self._count = count
        self._told: dict[str, float] = {}
        self._untold: Counter[str] = Counter()

    def note(self, refusal: Refusal, caller: CallerKey) -> None:
        """Note that a caller was refused."""
        reason, now = refusal.reason, time.monotonic()
        self._count(reason)
        if now < self._told.get(reason, -inf) + QUIET_SECONDS:
            self._untold[reason] += 1
            return
        self._told[reason] = now
        others = self._untold.pop(reason, 0)
        log.warning(
            "a connection of %s was closed: %s%s",
            "a TCP client" if caller == TCP else f"uid {caller}",
            refusal.line,
            f" ({others} others since the last such line)" if others else "",
        )
