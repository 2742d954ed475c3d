"""Servers on a unix socket that do not behave as a working daemon does."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: A function that serves a connection until the test is over.
Behaviour = Callable[[socket.socket, threading.Event], None]


@contextmanager
def serving(path: Path, behave: Behaviour) -> Iterator[Path]:
    over = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        behave(connection, over)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield path
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def http(status: str, body: bytes, *fields: str, length: int | None = None) -> bytes:
    size = f"content-length: {len(body) if length is None else length}"
    return "\r\n".join((f"HTTP/1.1 {status}", *(fields or [size]), "", "")).encode() + body


def answering(answer: bytes) -> Behaviour:
    def behave(connection: socket.socket, _over: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(answer)

    return behave


def hanging(_connection: socket.socket, over: threading.Event) -> None:
    over.wait()
