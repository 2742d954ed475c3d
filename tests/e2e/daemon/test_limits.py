"""A real daemon's limits on a caller, and the effect of these limits on other callers."""

import os
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import product
from pathlib import Path

import pytest

from affinityd.daemon.api.peers import MOST_OF_ONE, MOST_RECEIVED, TOO_LARGE
from tests.support.daemons import PATIENCE, Daemon, free_port, running

REFUSED = r"^affinityd_refused_connections_total (\S+)$"


def refused(daemon: Daemon) -> float:
    (count,) = re.findall(REFUSED, daemon.get("/metrics").text, re.MULTILINE)
    return float(count)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@as_root
def test_a_user_with_too_many_connections_does_not_block_other_users(daemon: Daemon) -> None:
    with crowd(daemon, MOST_OF_ONE + 1) as connections:
        assert everything(connections[0]) == b""  # the oldest idle connection
        connections[-1].sendall(REQUEST)
        connections[-1].shutdown(socket.SHUT_WR)
        assert everything(connections[-1]).endswith(ANSWER)
        assert refused(daemon) == 1
        for _ in range(20):
            assert daemon.get(TARGET).body == ANSWER


#: A request whose answer is longer than a socket's buffer.
EVERY_OTHER = ",".join(f"{cpu}" for cpu in range(0, 256, 2))
LONG_ANSWER = (
    f"GET /plan?gpus=0&ranks=256&nics=8&mode=all&cpuset={EVERY_OTHER} HTTP/1.1\r\nhost: x\r\n\r\n"
).encode()


@as_root
@pytest.mark.parametrize("asked", [b"", LONG_ANSWER], ids=["asks nothing", "reads no answer"])
def test_one_user_cannot_use_up_the_daemon_s_open_files(folder: Path, asked: bytes) -> None:
    with running(folder, *MACHINE, before=("prlimit", "--nofile=128:128")) as daemon:
        with crowd(daemon, 200, asked):
            for _ in range(50):
                assert daemon.get(TARGET).body == ANSWER
            files = len([*Path(f"/proc/{daemon.process.pid}/fd").iterdir()])
            assert files < 64  # 8 connections, (128 - 96) // 4, and the daemon's own files
        assert refused(daemon) >= 200 - 8
        assert daemon.process.poll() is None


def test_the_soft_limit_of_files_is_raised_to_the_hard_limit(folder: Path) -> None:
    with running(folder, *MACHINE, before=("prlimit", "--nofile=128:4096")) as daemon:
        limits = Path(f"/proc/{daemon.process.pid}/limits").read_text()
        assert re.search(r"Max open files +4096 +4096", limits)


#: Bytes that no real client sends. Without a limit they fill memory, or take a minute of CPU.
FLOODS = {
    "lines of a head": (b"GET /plan HTTP/1.1\r\n", b"x: y\r\n" * 5_000_000),
    "a value of a head": (b"GET /plan HTTP/1.1\r\nx: ", b"y" * 60_000_000),
    "a path": (b"GET /plan?", b"y" * 60_000_000),
    "a body": (b"GET /plan HTTP/1.1\r\ncontent-length: 99999999\r\n\r\n", b"y" * 60_000_000),
    "requests": (b"", b"GET /topology HTTP/1.1\r\nhost: x\r\n\r\n" * 200_000),
}


@pytest.mark.parametrize(("first", "more"), FLOODS.values(), ids=FLOODS)
def test_a_connection_that_sends_more_than_a_request_is_closed(
    daemon: Daemon, first: bytes, more: bytes
) -> None:
    before = memory(daemon)
    with connect(daemon) as connection, pytest.raises((BrokenPipeError, ConnectionResetError)):
        connection.sendall(first + more)
    assert memory(daemon) - before < 10 * 2**20
    assert daemon.get(TARGET).body == ANSWER


def test_a_request_head_that_is_too_long_is_answered(daemon: Daemon) -> None:
    with connect(daemon) as connection:
        connection.sendall(b"GET /plan?" + b"y" * MOST_RECEIVED)
        assert everything(connection) == TOO_LARGE


PATHS = ("/audit", "/metrics", "/topology", "/openapi.json", "/plan?gpus=0", "/nothing")


def test_requests_reset_before_their_answer_leave_no_traceback(folder: Path) -> None:
    port = free_port()
    with running(folder, *MACHINE, listen=f"127.0.0.1:{port}") as daemon:
        for target, number in product(PATHS, (1, 3, 3, 3)):
            request = f"GET {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
            with connect(daemon) as unix, socket.create_connection(("127.0.0.1", port)) as tcp:
                tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                for connection in (unix, tcp):
                    connection.sendall(request * number)
        assert daemon.get(TARGET).body == ANSWER
    assert "Traceback" not in daemon.log.read_text()
    assert daemon.complaints == []


def memory(daemon: Daemon) -> int:
    """Return the bytes of memory that a daemon uses now."""
    pages = Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


# Many connections to a daemon at once, by this user or another, and what is sent on them.

MACHINE = ("--machine", "dgx-a100")
TARGET = "/plan?gpus=0&mode=node&format=cpulist"
ANSWER = b"48-63,176-191\n"

REQUEST = f"GET {TARGET} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
ANOTHER = 65534  #: the uid of another user


def connect(daemon: Daemon) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.fspath(daemon.socket))
    connection.settimeout(PATIENCE)
    return connection


@contextmanager
def crowd(daemon: Daemon, number: int, asked: bytes = b"") -> Iterator[list[socket.socket]]:
    """Open `number` connections as another user: a daemon sees the effective user, unix(7)."""
    with ExitStack() as stack:
        os.setegid(ANOTHER)
        os.seteuid(ANOTHER)
        try:
            connections = []
            for _ in range(number):
                connections.append(stack.enter_context(connect(daemon)))
                connections[-1].sendall(asked)
        finally:
            os.seteuid(0)
            os.setegid(0)
        yield connections


def everything(connection: socket.socket) -> bytes:
    received = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received
