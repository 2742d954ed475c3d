"""Connections to a daemon, many at once, of this user and of others; what is sent on them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tests.support.daemons import PATIENCE, Daemon

MACHINE = ("--machine", "dgx-a100")
TARGET = "/plan?gpus=0&mode=node&format=cpulist"
ANSWER = b"48-63,176-191\n"

ANOTHER = 65534  #: a user

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


def get(target: str, *headers: str) -> bytes:
    return "\r\n".join((f"GET {target} HTTP/1.1", "host: x", *headers, "", "")).encode()


REQUEST = get(TARGET)


def connect(daemon: Daemon) -> socket.socket:
    """Connect, once there is room in the queue."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.fspath(daemon.socket))
    connection.settimeout(PATIENCE)
    return connection


@contextmanager
def crowd(daemon: Daemon, number: int, user: int | None = None) -> Iterator[list[socket.socket]]:
    """Connect so often; as another user, who is the effective one to the kernel, unix(7)."""
    with ExitStack() as stack:
        if user is not None:
            os.setegid(user)
            os.seteuid(user)
        try:
            connections = [stack.enter_context(connect(daemon)) for _ in range(number)]
        finally:
            if user is not None:
                os.seteuid(0)
                os.setegid(0)
        yield connections


def everything(connection: socket.socket) -> bytes:
    """Return what comes until the daemon closes."""
    received = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received
