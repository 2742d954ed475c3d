"""What has been received and not parsed: heads and bodies in turn, each cut where it ends."""

from __future__ import annotations

from affinityd.api.head import Head, is_whole


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
