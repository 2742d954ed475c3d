"""Asks what listens on a unix socket, whoever it is: those, too, whom no client would trust.

Sources: unix(7), whose connect(2) says EAGAIN where the queue of the listener is full; RFC 9112.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

REQUEST = "GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
HEAD_ENDS = b"\r\n\r\n"
MOST = 1024 * 1024  #: bytes of an answer
CHUNK = 65536
PAUSE = 0.005  #: seconds between two tries while the queue is full

NO_HTTP = "it does not speak HTTP"
NO_ROOM = "it takes no more connections: its queue is full"


class NoAnswerError(Exception):
    """What listens there does not answer as a daemon does; one line that says how."""


@dataclass(frozen=True)
class Answer:
    """What came."""

    status: int
    body: bytes


def connect(connection: socket.socket, path: str, deadline: float) -> None:
    """Connect, once there is room; `deadline` is of time.monotonic.

    Raises NoAnswerError where there is none until then, and OSError where nobody listens.
    """
    while True:
        connection.settimeout(max(deadline - time.monotonic(), PAUSE))
        try:
            connection.connect(path)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise NoAnswerError(NO_ROOM) from None
            time.sleep(PAUSE)
        else:
            return


def ask(connection: socket.socket, target: str, deadline: float) -> Answer:
    """Return what is answered at a path, in however many pieces it comes. Raises NoAnswerError."""
    began = time.monotonic()
    try:
        connection.sendall(REQUEST.format(target).encode())
        received = _received(connection, deadline)
    except TimeoutError:
        raise NoAnswerError(f"no answer within {deadline - began:.1g} s") from None
    except OSError as error:
        raise NoAnswerError(error.strerror or str(error)) from None
    head, ended, body = received.partition(HEAD_ENDS)
    version, _, status = head.partition(b" ")
    if not (ended and version.startswith(b"HTTP/1.") and status[:3].isdigit()):
        raise NoAnswerError(NO_HTTP)
    return Answer(int(status[:3]), body)


def _received(connection: socket.socket, deadline: float) -> bytes:
    """Return what comes until the other side closes. Raises OSError, TimeoutError among them."""
    received = b""
    while len(received) < MOST:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        chunk = connection.recv(CHUNK)
        if not chunk:
            break
        received += chunk
    return received
