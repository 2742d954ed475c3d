"""What has been received and not parsed: heads and bodies in turn, each cut where it ends."""

from __future__ import annotations

from collections.abc import Iterable

from affinityd.daemon.http.refusals import (
    BODY_TOO_LARGE,
    BODY_WITHOUT_LENGTH,
    MAX_BODY,
    MAX_HEAD,
    MAX_LINES,
    Refusal,
)


class Inbox:
    """Bytes of one connection, in the order in which they came."""

    def __init__(self) -> None:
        """Begin before the first head."""
        self.body = 0  #: bytes of a body that are still to come
        self.last = 0  #: bytes of the last head that has ended
        self._head: Head | None = None  # one that has begun and has not ended
        self._waiting = b""

    @property
    def is_empty(self) -> bool:
        """Whether all that came has been taken."""
        return not self._waiting

    @property
    def is_amid_head(self) -> bool:
        """Whether a head has begun and has not ended."""
        return self._head is not None

    @property
    def is_too_large(self) -> bool:
        """Whether a head has more than is read."""
        return self._head is not None and self._head.is_too_large

    @property
    def holds(self) -> int:
        """Bytes of what waits, and of a head that has not ended, which lie here."""
        return len(self._waiting) + (self._head.size if self._head else 0)

    def pass_whole(self, data: bytes) -> bool:
        """Return whether this is one head and nothing else, and nothing waits before it.

        Then it has passed: so nearly all requests come, and this is all that they take.
        """
        if self._waiting or self._head or self.body or not is_whole(data):
            return False
        self.last = len(data)
        return True

    def add(self, data: bytes) -> None:
        """Take what has come; empty lines before a head are none of it, RFC 9112, 2.2."""
        self._waiting += data
        if not (self._head or self.body):
            self._waiting = self._waiting.lstrip(b"\r\n")

    def take(self) -> bytes:
        """Return what is to be parsed next: of a body, or else of a head, as much as there is."""
        if self.body:
            size = min(len(self._waiting), self.body)
            self.body -= size
        else:
            self._head = self._head or Head()
            size = self._head.take(self._waiting)
        data, self._waiting = self._waiting[:size], self._waiting[size:]
        return data

    def end_head(self, body: int) -> None:
        """Note that a head has ended, and how many bytes of a body it announces."""
        if self._head is not None:
            self.last = self._head.size
        self._head, self.body = None, body

    def clear(self) -> None:
        """Drop what waits."""
        self._waiting = b""


Header = tuple[bytes, bytes]  #: its name in lower case, and its value

END = b"\r\n\r\n"


class Head:
    """As much of a head as has come."""

    def __init__(self) -> None:
        self.size = 0  #: bytes
        self._lines = 0
        self._tail = b""  # its last bytes, in which END may have begun

    @property
    def is_too_large(self) -> bool:
        """Whether there is more of it than is read."""
        return self.size > MAX_HEAD or self._lines > MAX_LINES

    def take(self, data: bytes) -> int:
        """Add what has come; return how many bytes of it are the head's."""
        end = (self._tail + data).find(END)
        size = len(data) if end < 0 else end + len(END) - len(self._tail)
        self.size += size
        self._lines += data.count(b"\n", 0, size)
        self._tail = (self._tail + data[:size])[-len(END) + 1 :]
        return size


def is_whole(data: bytes) -> bool:
    """Return whether this is one head, all of it and nothing else, and not too large."""
    size = len(data)
    return (
        len(END) < size <= MAX_HEAD
        and data.find(END) == size - len(END)
        and data.count(b"\n") <= MAX_LINES
    )


def announced_body(headers: Iterable[Header]) -> int | Refusal:
    """Return how many bytes a body will have, or why it is not taken."""
    for name, value in headers:
        if name == b"transfer-encoding":
            return BODY_WITHOUT_LENGTH
        if name == b"content-length":
            return BODY_TOO_LARGE if int(value) > MAX_BODY else int(value)
    return 0
