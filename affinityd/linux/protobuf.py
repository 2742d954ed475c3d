"""Messages of Protocol Buffers without their descriptions, and one gRPC call over a unix socket.

No library, because: grpcio has 19 MB and takes 8.6 starts of Python to import, protobuf 3 MB and
5.5 starts; this takes 2.8, most of it for `socket`. A node makes two calls of one method, and NRI
has no Python library. With a second service, or calls that stream, grpcio would be taken.

Sources: https://protobuf.dev/programming-guides/encoding; HTTP/2 (RFC 9113), with a window that no
answer exhausts and no dynamic table (RFC 7541), so that no header of the answer has to be decoded;
gRPC over HTTP/2 (grpc/doc/PROTOCOL-HTTP2.md).

A message leaves out a field that has its default. Readers raise ValueError, one line, for bytes
that are no message, and no other error.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping, Sequence

from affinityd.text import printable

#: Wire types.
VARINT = 0
FIXED64 = 1
LENGTH = 2
FIXED32 = 5
SIZES = {FIXED64: 8, FIXED32: 4}
MOST_BITS = 64
MOST_FIELDS = 2**16  #: most fields of a message, or numbers of a field: memory is limited

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA = 0
HEADERS_FRAME = 1
RST_STREAM = 3
SETTINGS_FRAME = 4
PING = 6
GOAWAY = 7
WINDOW_UPDATE = 8
#: Flags of frames.
END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
STREAM = 1  #: the only stream
FRAME_HEAD = 9  #: bytes before a frame's payload
MAX_FRAME = 2**14  #: bytes of a payload, unless the client allows more
MESSAGE_PREFIX = 5  #: bytes before a message: whether it is compressed, and its length
WINDOW = 2**31 - 1
DEFAULT_WINDOW = 65535
LARGEST_ANSWER = 16 * 2**20  #: bytes of an answer; kubelet's own clients have the same limit

Value = int | bytes  #: bytes: message, text, packed or fixed-size numbers
Message = Mapping[int, Sequence[Value]]  #: the values of each field, by its number
Frame = tuple[int, int, int, bytes]  #: type, flags, stream, payload


def read(data: Value, until: int = 0) -> Message:
    """Return the fields of a message by their numbers; `until`: stop after this field."""
    message = _bytes(data)
    place = 0
    count = 0
    fields: dict[int, list[Value]] = {}
    while place < len(message):
        if count == MOST_FIELDS:
            raise ValueError(f"over {MOST_FIELDS} fields")
        tag, place = _varint(message, place)
        number = tag >> 3
        kind = tag & 7
        value: Value
        if kind == VARINT:
            value, place = _varint(message, place)
        else:
            size = SIZES.get(kind, len(message))
            if kind == LENGTH:
                size, place = _varint(message, place)
            if place + size > len(message):
                raise ValueError(f"field {number} is cut off")
            value = message[place : place + size]
            place = place + size
        fields.setdefault(number, []).append(value)
        if number == until:
            break
        count += 1
    return fields


def messages(message: Message, number: int) -> list[Message]:
    """Return the messages of a repeated field."""
    return [read(value) for value in message.get(number, ())]


def embedded(outer: Message, number: int) -> Message:
    """Return the message of a field; an empty message if the field is not set."""
    return read(outer.get(number, (b"",))[-1])


def texts(message: Message, number: int) -> list[str]:
    """Return the texts of a repeated field, without characters that a terminal acts on."""
    values = message.get(number, ())
    return [printable(_bytes(value).decode(errors="replace")) for value in values]


def text(message: Message, number: int) -> str:
    """Return the text of a field, without characters that a terminal acts on."""
    return (texts(message, number) or [""])[-1]


def numbers(message: Message, number: int) -> list[int]:
    """Return the numbers of a repeated field, whether packed or single."""
    unpacked = []
    for value in message.get(number, ()):
        if isinstance(value, int):
            unpacked.append(value)
            continue
        place = 0
        while place < len(value):
            if len(unpacked) == MOST_FIELDS:
                raise ValueError(f"over {MOST_FIELDS} numbers")
            one, place = _varint(value, place)
            unpacked.append(one)
    return unpacked


def number(message: Message, number: int) -> int:
    """Return the number of a field, without a sign."""
    value = message.get(number, (0,))[-1]
    if not isinstance(value, int):
        raise ValueError("a message where a number belongs")  # noqa: TRY004 - of the wire
    return value


def field(number: int, value: Value | str) -> bytes:
    """Return an encoded field; `value`: a number from 0, a text, or a message (joined fields)."""
    if isinstance(value, int):
        return _written(number << 3 | VARINT) + _written(value)
    data = value.encode() if isinstance(value, str) else value
    return _written(number << 3 | LENGTH) + _written(len(data)) + data


def _written(number: int) -> bytes:
    """Return a number as a varint."""
    parts = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - what a byte has room for
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*parts, number))


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Return the number of a varint, and where the next field begins."""
    if place < len(message) and message[place] < 0x80:  # noqa: PLR2004 - most numbers are one byte
        return message[place], place + 1
    number = 0
    for shift in range(0, MOST_BITS + 6, 7):
        if place == len(message):
            raise ValueError("a number is cut off")
        byte = message[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the last byte
            return number & (2**MOST_BITS - 1), place
    raise ValueError(f"a number of over {MOST_BITS} bits")


def _bytes(value: Value) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a message belongs")  # noqa: TRY004 - of the wire
    return value


def call(path: str, method: str, message: bytes, timeout: float) -> bytes:
    """Return the server's answer to one call at a unix socket; `method`: /v1.Service/Method.

    `timeout`: seconds for all of it. Raises OSError (also TimeoutError) if there is no answer, and
    ValueError, one line, for an answer that is no message.
    """
    deadline = time.monotonic() + timeout
    answer = bytearray()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        connection.connect(path)
        connection.sendall(_request(method, message))
        for kind, flags, stream, payload in _frames(connection, deadline):
            last = int.from_bytes(payload[:4], "big") & WINDOW  # the last stream that is answered
            is_ours = stream == STREAM
            if kind in {SETTINGS_FRAME, PING} and not flags & ACK:
                connection.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
            elif (kind == GOAWAY and last < STREAM) or (kind == RST_STREAM and is_ours):
                raise ValueError(f"{path} refused {method}")
            elif kind == DATA and is_ours:
                answer += payload
                if len(answer) > LARGEST_ANSWER + MESSAGE_PREFIX:
                    raise ValueError(f"{path} answered {method} with over {LARGEST_ANSWER} bytes")
            if kind in {DATA, HEADERS_FRAME} and is_ours and flags & END_STREAM:
                break
    is_compressed = answer[:1] != b"\0"
    size = int.from_bytes(answer[1:MESSAGE_PREFIX], "big")
    if is_compressed or size != len(answer) - MESSAGE_PREFIX:
        why = "no whole message" if answer else "an error"  # the reason is in its trailers
        raise ValueError(f"{path} answered {method} with {why}")
    return bytes(answer[MESSAGE_PREFIX:])


def _request(method: str, message: bytes) -> bytes:
    settings = b"\x00\x01" + bytes(4) + b"\x00\x04" + WINDOW.to_bytes(4, "big")
    # From the static table: 3 :method POST, 6 :scheme http, 4 :path, 1 :authority. Others in full.
    headers = b"\x83\x86" + b"\x04" + _literal(method) + b"\x01" + _literal("localhost")
    for name, value in (("content-type", "application/grpc"), ("te", "trailers")):
        headers += b"\x00" + _literal(name) + _literal(value)
    body = b"\x00" + len(message).to_bytes(4, "big") + message
    frames = (
        frame(SETTINGS_FRAME, 0, 0, settings),
        frame(WINDOW_UPDATE, 0, 0, (WINDOW - DEFAULT_WINDOW).to_bytes(4, "big")),
        frame(HEADERS_FRAME, END_HEADERS, STREAM, headers),
        frame(DATA, END_STREAM, STREAM, body),
    )
    return PREFACE + b"".join(frames)


def _literal(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame of HTTP/2."""
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream.to_bytes(4, "big") + payload


def _frames(connection: socket.socket, deadline: float) -> Iterator[Frame]:
    """Yield the server's frames. Raises OSError; ValueError if the server speaks no HTTP/2."""
    while True:
        head = _exactly(connection, FRAME_HEAD, deadline)
        length = int.from_bytes(head[:3], "big")
        kind = head[3]
        flags = head[4]
        stream = int.from_bytes(head[5:], "big") & WINDOW
        if length > MAX_FRAME:
            raise ValueError("the server speaks no HTTP/2")
        yield kind, flags, stream, _exactly(connection, length, deadline)


def _exactly(connection: socket.socket, size: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(left)
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the server closed the connection")
        data += part
    return bytes(data)
