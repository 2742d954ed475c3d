"""An answer that was given before, as it is sent again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from affinityd.daemon.http.receive_buffer import Header
from affinityd.daemon.peers.connection import PeerConnection

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


#: Returns what was answered to a plan request before: its query, its headers, who asks.
FindAnswer = Callable[[bytes, Iterable[Header], PeerConnection], CachedAnswer | None]
