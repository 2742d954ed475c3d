"""Many connections at once from one process, as cheaply as Python can: epoll(7) and raw bytes."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

END = b"\r\n\r\n"
LENGTH = b"content-length: "
SHOWN = 600  #: bytes of an answer that is wrong
READ = 1 << 18  #: bytes
SILENCE = 30.0  #: seconds in which nothing is answered

#: A request, and whether an answer to it, with its head, is right.
Question = tuple[bytes, Callable[[bytes], bool]]


def is_ok(answer: bytes) -> bool:
    return answer.startswith(b"HTTP/1.1 200 ")


def get(target: str, accept: str = "*/*") -> bytes:
    """Return a request."""
    return f"GET {target} HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\n\r\n".encode()


class Connection:
    """One connection: a question that is under way, and the part of its answer that has come."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.socket.settimeout(0)
        self.began = 0.0
        self.is_right: Callable[[bytes], bool] = is_ok
        self._unsent = memoryview(b"")
        self._answer = b""

    def ask(self, question: Question) -> None:
        request, self.is_right = question
        self.began = time.perf_counter()
        self._unsent, self._answer = memoryview(request), b""
        self._send()

    def take(self) -> bytes | None:
        """Return the answer, None: it is not complete."""
        self._send()
        try:
            data = self.socket.recv(READ)
        except BlockingIOError:
            return None
        assert data, f"closed amid an answer: {self._answer[:200]!r}"
        self._answer += data
        head, end, body = self._answer.partition(END)
        if not end:
            return None
        length = head[head.index(LENGTH) + len(LENGTH) :].partition(b"\r")[0]
        return self._answer if len(body) == int(length) else None

    def _send(self) -> None:
        """Send on: a unix socket takes a long request in parts."""
        with suppress(BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]


def burst(path: str, requests: Sequence[bytes]) -> tuple[float, list[bytes]]:
    """Ask all at once, each over a connection of its own; all answers must be 200.

    Return the seconds from the first connect(2) to the last answer, and the answers.
    """
    began = time.perf_counter()
    answers = [b""] * len(requests)
    waiting: dict[int, tuple[int, Connection]] = {}
    with select.epoll() as poll:
        for number, request in enumerate(requests):
            connection = Connection(path)
            connection.ask((request, is_ok))
            waiting[connection.socket.fileno()] = number, connection
            poll.register(connection.socket, select.EPOLLIN)
        while waiting:
            for file, _ in _ready(poll):
                number, connection = waiting[file]
                if answer := connection.take():
                    answers[number] = answer
                    del waiting[file]
                    connection.socket.close()
    seconds = time.perf_counter() - began
    for answer in answers:
        assert is_ok(answer), answer[:SHOWN]
    return seconds, answers


class Crowd:
    """Connections that stay, each with one question under way."""

    def __init__(self, path: str, size: int) -> None:
        self._connections = [Connection(path) for _ in range(size)]
        self._by_file = {connection.socket.fileno(): connection for connection in self._connections}
        # A loop accepts one a turn, and would serve those that it has all the while.
        self.ask(iter([(get("/healthz"), is_ok)] * size))

    def close(self) -> None:
        for connection in self._connections:
            connection.socket.close()

    def ask(self, questions: Iterator[Question]) -> list[float]:
        """Ask them all; return how long each answer took, in seconds.

        Raises AssertionError for one that is wrong, or does not come.
        """
        took, idle = list[float](), list(self._connections)
        with select.epoll() as poll:
            for file in self._by_file:
                poll.register(file, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
            while True:
                while idle and (question := next(questions, None)):
                    idle.pop().ask(question)
                if len(idle) == len(self._connections):
                    return took
                for file, _ in _ready(poll):
                    connection = self._by_file[file]
                    if connection.began and (answer := connection.take()):
                        took.append(time.perf_counter() - connection.began)
                        connection.began = 0.0
                        assert connection.is_right(answer), answer[:SHOWN]
                        idle.append(connection)


def _ready(poll: select.epoll) -> list[tuple[int, int]]:
    ready = poll.poll(SILENCE)
    assert ready, f"nothing was answered for {SILENCE:.0f} s"
    return ready
