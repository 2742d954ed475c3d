"""Heads of requests for plans: those that were answered from the cache are not parsed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from httptools import HttpRequestParser
from starlette.types import Scope

from affinityd.daemon.state.cache import Cache

#: Returns an earlier answer to the plan request of a query and the rest of a scope: the
#: answer's own headers, a line each, an empty line, and its body. It will be sent.
FindAnswer = Callable[[bytes, Scope], bytes | None]

Headers = Sequence[tuple[bytes, bytes]]

MAX_BYTES = 2 * 1024 * 1024  #: of heads and their parts
ENTRY_BYTES = 1024  #: the rest of one, about


@dataclass(frozen=True)
class PlanHead:
    """The parts of a request for a plan on which its answer depends."""

    query: bytes
    headers: Headers  #: Accept, the first; of the others it depends on none
    stays: bool  #: the connection stays open after the answer


class PlanHeads:
    """Parsed heads, by their bytes."""

    def __init__(self) -> None:
        self._heads: Cache[bytes, PlanHead] = Cache(MAX_BYTES)
        self.get = self._heads.get
        self._headers: Headers = ()
        self._begin = b""

    def put(self, data: bytes, head: PlanHead) -> None:
        """Remember the parts of a head that came alone, and on a connection that stays."""
        if head.stays:
            self._heads.put(data, head, 2 * len(data) + ENTRY_BYTES)

    def answer_begin(self, headers: Headers) -> bytes:
        """Return an answer's first lines; `headers` is another object when it has changed."""
        if headers is not self._headers:
            lines = (b"%b: %b\r\n" % header for header in headers)
            self._headers, self._begin = headers, b"".join((b"HTTP/1.1 200 OK\r\n", *lines))
        return self._begin


def plan_head(url: bytes, headers: Headers, parser: HttpRequestParser) -> PlanHead | None:
    """Return the parsed request; None if it is not one for a plan as the cache has it."""
    path, _, query = url.partition(b"?")
    if path != b"/plan" or b"#" in query or parser.should_upgrade():
        return None
    if parser.get_method() != b"GET" or parser.get_http_version() != "1.1":
        return None
    accepts = [header for header in headers if header[0] == b"accept"]
    return PlanHead(query, accepts[:1], parser.should_keep_alive())
