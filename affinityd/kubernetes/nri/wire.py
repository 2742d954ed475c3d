"""The bytes on NRI's socket: messages of ttrpc, of two connections in one. No I/O.

Sources: containerd/nri pkg/net/multiplex/mux.go (frames), containerd/ttrpc PROTOCOL.md (messages).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

PLUGIN, RUNTIME = 1, 2  #: connections, by the side that answers
REQUEST, RESPONSE = 1, 2  #: kinds of messages

FRAME = Struct(">II")  #: before a part of a message: its connection, and its length
HEAD = Struct(">IIBB")  #: before a message's data: its length, stream, kind and flags
LARGEST = 4 * 2**20  #: bytes of a message's data
#: Bytes in a frame that is sent. The runtime reads into a buffer of Go's bufio, and closes the
#: connection on a longer frame.
ROOM = 4096


@dataclass(frozen=True)
class Message:
    """A request, or the response to the one of the same stream."""

    connection: int
    stream: int
    kind: int
    data: bytes


class Trunk:
    """Puts the received parts of messages together."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._parts = {PLUGIN: bytearray(), RUNTIME: bytearray()}

    def received(self, data: bytes) -> list[Message]:
        """Return the messages that these bytes complete. Raises ValueError for one too long."""
        self._received += data
        return [it for connection in self._frames() for it in self._messages(connection)]

    def _frames(self) -> Iterator[int]:
        """Move the parts of messages to their connections, and yield these."""
        while (body := _body(self._received, FRAME, LARGEST + HEAD.size)) is not None:
            connection, _ = FRAME.unpack_from(self._received)
            del self._received[: FRAME.size + len(body)]
            if connection in self._parts:  # as the runtime, it passes over others
                self._parts[connection] += body
                yield connection

    def _messages(self, connection: int) -> Iterator[Message]:
        parts = self._parts[connection]
        while (data := _body(parts, HEAD, LARGEST)) is not None:
            _, stream, kind, _ = HEAD.unpack_from(parts)
            del parts[: HEAD.size + len(data)]
            yield Message(connection, stream, kind, data)


def packed(message: Message) -> bytes:
    """Return the bytes of a message, which must be sent without others between them."""
    data = HEAD.pack(len(message.data), message.stream, message.kind, 0) + message.data
    parts = (data[place : place + ROOM] for place in range(0, len(data), ROOM))
    return b"".join(FRAME.pack(message.connection, len(it)) + it for it in parts)


def _body(data: bytearray, head: Struct, most: int) -> bytes | None:
    """Return the bytes behind a head that has their length; None: they are not all there yet."""
    if len(data) < head.size:
        return None
    length = int.from_bytes(data[4:8] if head is FRAME else data[:4], "big")
    if length > most:
        raise ValueError(f"{length} bytes are too long for NRI: {most} are the most")
    whole = head.size + length
    return bytes(data[head.size : whole]) if len(data) >= whole else None
