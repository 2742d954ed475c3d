"""The head of a request, in the pieces in which it comes: where it ends, and how large it is."""

from __future__ import annotations

from collections.abc import Iterable

from affinityd.api.refusals import (
    BODY_TOO_LARGE,
    BODY_WITHOUT_LENGTH,
    MAX_BODY,
    MAX_HEAD,
    MAX_LINES,
    Refusal,
)

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
