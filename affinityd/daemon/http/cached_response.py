"""An answer that was given before, as it is sent again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from starlette.types import Scope

Header = tuple[bytes, bytes]  #: its name in lower case, and its value

OK = b"HTTP/1.1 200 OK\r\n"
CLOSE = b"connection: close\r\n"


@dataclass(frozen=True)
class CachedAnswer:
    """An answer, and how it is counted."""

    headers: bytes  #: its own ones, a line each
    body: bytes
    count: Callable[[], None]

    def reply(self, more: Iterable[Header], *, stays: bool) -> bytes:
        """Return all that is sent, with more headers; `stays`: the connection does."""
        lines = b"".join(b"%b: %b\r\n" % header for header in more)
        return b"".join((OK, lines, self.headers, b"" if stays else CLOSE, b"\r\n", self.body))


#: Returns what was answered before to the plan request of a query and, but for that, a scope.
FindAnswer = Callable[[bytes, Scope], CachedAnswer | None]
