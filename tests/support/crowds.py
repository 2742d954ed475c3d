"""Connections to a daemon, many at once, of this user and of others; what is sent on them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.support.daemons import PATIENCE, Daemon

MACHINE = ("--machine", "dgx-a100")
TARGET = "/plan?gpus=0&mode=node&format=cpulist"
ANSWER = b"48-63,176-191\n"

#: Holds as many connections as it is told, as another user, until its stdin ends.
HOLD = """
import os, socket, sys
path, user, number = sys.argv[1:]
os.setgid(int(user)); os.setuid(int(user))
held = []
for _ in range(int(number)):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].connect(path)
print("holds", flush=True)
sys.stdin.read()
"""

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


def everything(connection: socket.socket) -> bytes:
    """Return what comes until the daemon closes."""
    received = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received


@contextmanager
def being(user: int) -> Iterator[None]:
    """Connect as another user: the kernel notes the effective one, unix(7)."""
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@contextmanager
def holding(daemon: Daemon, user: int, number: int) -> Iterator[None]:
    """Have another user hold so many connections."""
    command = [sys.executable, "-I", "-S", "-c", HOLD, str(daemon.socket), str(user), str(number)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        yield
        process.stdin.close()
