"""One gRPC call over a unix socket, by the standard library alone.

HTTP/2 (RFC 9113) with a window that no answer exhausts and no dynamic table (RFC 7541), so that no
header of the answer has to be decoded; gRPC over HTTP/2 (grpc/doc/PROTOCOL-HTTP2.md).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8  #: flags of frames
STREAM = 1  #: the only one
HEAD = 9  #: bytes before a frame's payload
MAX_FRAME = 2**14  #: bytes of a payload, where a client has not allowed more
PREFIX = 5  #: bytes before a message: whether it is compressed, and its length
WINDOW = 2**31 - 1
DEFAULT_WINDOW = 65535
LARGEST = 16 * 2**20  #: bytes of an answer; kubelet's clients take as many

Frame = tuple[int, int, int, bytes]  #: type, flags, stream, payload


def call(path: str, method: str, message: bytes, timeout: float) -> bytes:
    """Return the answer of the server at a unix socket to one call, like /v1.Service/Method.

    `timeout`: seconds for all of it. Raises OSError, TimeoutError among them, for no answer, and
    ValueError, one line, for another answer than a message.
    """
    deadline = time.monotonic() + timeout
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        connection.connect(path)
        connection.sendall(_request(method, message))
        answer = bytearray()
        for kind, flags, stream, payload in _frames(connection, deadline):
            if kind in {SETTINGS, PING} and not flags & ACK:
                connection.sendall(_frame(kind, ACK, 0, payload if kind == PING else b""))
            elif _is_refusal(kind, stream, payload):
                raise ValueError(f"{path} refused {method}")
            elif kind == DATA and stream == STREAM:
                answer += _unpadded(payload) if flags & PADDED else payload
                if len(answer) > LARGEST + PREFIX:
                    raise ValueError(f"{path} answered {method} with over {LARGEST} bytes")
            if kind in {DATA, HEADERS} and stream == STREAM and flags & END_STREAM:
                break
    return _message(bytes(answer), f"{path} answered {method}")


def _unpadded(payload: bytes) -> bytes:
    """Return a payload without its padding, whose length comes first."""
    return payload[1 : len(payload) - int.from_bytes(payload[:1], "big")]


def _is_refusal(kind: int, stream: int, payload: bytes) -> bool:
    """Return whether the call gets no answer: a server that leaves may answer it all the same."""
    last = int.from_bytes(payload[:4], "big") & WINDOW
    return (kind == GOAWAY and last < STREAM) or (kind == RST_STREAM and stream == STREAM)


def _request(method: str, message: bytes) -> bytes:
    """Return all that a client sends: its settings, the headers, and the message."""
    settings = b"\x00\x01" + bytes(4) + b"\x00\x04" + WINDOW.to_bytes(4, "big")
    # Of the static table: 3 :method POST, 6 :scheme http, 4 :path, 1 :authority. Others in full.
    headers = b"\x83\x86" + b"\x04" + _text(method) + b"\x01" + _text("localhost")
    for name, value in (("content-type", "application/grpc"), ("te", "trailers")):
        headers += b"\x00" + _text(name) + _text(value)
    body = b"\x00" + len(message).to_bytes(4, "big") + message
    frames = (
        _frame(SETTINGS, 0, 0, settings),
        _frame(WINDOW_UPDATE, 0, 0, (WINDOW - DEFAULT_WINDOW).to_bytes(4, "big")),
        _frame(HEADERS, END_HEADERS, STREAM, headers),
        _frame(DATA, END_STREAM, STREAM, body),
    )
    return PREFACE + b"".join(frames)


def _text(text: str) -> bytes:
    """Return a string literal, of less than 127 bytes."""
    return bytes([len(text)]) + text.encode()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    )


def _frames(connection: socket.socket, deadline: float) -> Iterator[Frame]:
    """Yield the frames that the server sends.

    Raises OSError where it closes or is late, ValueError for no frame.
    """
    while True:
        head = _exactly(connection, HEAD, deadline)
        length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
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


def _message(answer: bytes, where: str) -> bytes:
    """Return the message of an answer. Without one, its trailers say what went wrong."""
    is_whole = (
        len(answer) >= PREFIX and int.from_bytes(answer[1:PREFIX], "big") == len(answer) - PREFIX
    )
    if not is_whole or answer[0]:
        raise ValueError(f"{where} with {'an error' if not answer else 'no whole message'}")
    return answer[PREFIX:]
