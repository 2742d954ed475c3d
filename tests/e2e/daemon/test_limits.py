"""What a real daemon takes from whoever comes, and what becomes of the others meanwhile."""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import uvloop
from starlette.types import Receive, Scope, Send

from affinityd.daemon.http.connections import Connections
from affinityd.daemon.http.refusals import (
    ANSWER_SECONDS,
    IDLE_SECONDS,
    MAX_HEAD,
    MOST_OF_ONE,
    REQUEST_SECONDS,
    Refusal,
    RefusalLog,
)
from affinityd.daemon.servers import Server
from affinityd.daemon.sockets import listen_unix
from tests.support.daemons import PATIENCE, Daemon, eventually, is_ready, running
from tests.support.servers import sweep

TARGET = "/plan?gpus=0&mode=node&format=cpulist"
REQUEST = f"GET {TARGET} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
ANSWER = b"48-63,176-191\n"

#: Bytes that one user may cost: a fraction of what the unit gives the daemon (MemoryMax=512M).
GROWTH = 256 * 2**20

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

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that other users may enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("limits"), "--machine", "dgx-a100") as daemon:
        yield daemon


def connect(daemon: Daemon) -> socket.socket:
    """Connect, once there is room in the queue."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.fspath(daemon.socket))
    connection.settimeout(PATIENCE)
    return connection


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


def get(target: str, *headers: str) -> bytes:
    return "\r\n".join((f"GET {target} HTTP/1.1", "host: x", *headers, "", "")).encode()


def peak(process: int) -> int:
    """Return the most memory that a process has had, in bytes, proc_pid_status(5)."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def everything(connection: socket.socket) -> bytes:
    """Return what comes until the daemon closes, or says nothing more for a moment."""
    received = b""
    connection.settimeout(0.5)
    with suppress(TimeoutError, ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received


def say(daemon: Daemon, data: bytes) -> bytes:
    with connect(daemon) as connection:
        connection.sendall(data)
        return everything(connection)


def refused(daemon: Daemon) -> Mapping[str, float]:
    """Return how many connections were refused, by reason."""
    found = re.findall(
        r'^affinityd_refused_connections_total\{reason="(\w+)"\} (\S+)$',
        daemon.get("/metrics").text,
        re.MULTILINE,
    )
    return {reason: float(count) for reason, count in found}


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


def test_what_is_not_answered_is_named_by_what_was_asked_and_not_by_a_host(daemon: Daemon) -> None:
    told = say(daemon, b"GET /nope HTTP/1.1\r\nhost: [::1\r\nconnection: close\r\n\r\n")
    assert b"GET '/nope' is not answered here" in told


def test_every_reason_is_counted_from_0_on(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", "dgx-a100") as daemon:
        assert refused(daemon) == {it.reason: 0.0 for it in Refusal}


REQUESTS = [
    pytest.param(b"GET /plan%0A?gpus=0 HTTP/1.1", 200, id="a newline behind the path"),
    pytest.param(b"GET //plan?gpus=0 HTTP/1.1", 404, id="two slashes"),
    pytest.param(b"GET http://x/plan?gpus=0 HTTP/1.1", 200, id="an absolute target"),
    pytest.param(b"GET x:1 HTTP/1.1", 400, id="a target that is an address"),
    pytest.param(b"OPTIONS * HTTP/1.1", 404, id="a star"),
    pytest.param(b"OPTIONS /plan HTTP/1.1", 405, id="OPTIONS"),
    pytest.param(b"HEAD /plan?gpus=0 HTTP/1.1", 200, id="HEAD"),
    pytest.param(b"TRACE /plan?gpus=0 HTTP/1.1", 405, id="TRACE"),
    pytest.param(b"GeT /plan HTTP/1.1", 400, id="a method in odd case"),
    pytest.param(b"GET /%ff%fe HTTP/1.1", 404, id="a path that is no UTF-8"),
    pytest.param(b"GET /%00 HTTP/1.1", 404, id="a path with a NUL, encoded"),
    pytest.param(b"GET /plan?gpus=%ff HTTP/1.1", 422, id="a value that is no UTF-8"),
    pytest.param(b"GET /plan?gpus=\xff HTTP/1.1", 400, id="a value that is no ASCII"),
    pytest.param(b"GET /plan?%ff=0 HTTP/1.1", 422, id="a name that is no UTF-8"),
    pytest.param(b"GET /plan?visible=%00 HTTP/1.1", 422, id="a NUL in a value"),
    pytest.param(b"GET /plan?gpus=0 HTTP/1.1\r\naccept: \xff\xfe", 200, id="a header, no UTF-8"),
    pytest.param(b"GET /plan?gpus=0 HTTP/1.1\r\na\x01: b", 400, id="a control in a header"),
    pytest.param(b"GET /plan?" + b"gpus=0&" * 63 + b"gpus=0 HTTP/1.1", 422, id="64 parameters"),
    pytest.param(b"GET /plan?" + b"gpus=0&" * 64 + b"gpus=0 HTTP/1.1", 422, id="65 parameters"),
    pytest.param(b"GET /plan? HTTP/1.1", 200, id="an empty query"),
    pytest.param(b"GET /plan?& HTTP/1.1", 422, id="an empty parameter"),
    pytest.param(b"GET /plan?gpus HTTP/1.1", 422, id="no value"),
    pytest.param(b"GET /plan?cpuset=0-65535 HTTP/1.1", 200, id="CPU 65535"),
    pytest.param(b"GET /plan?cpuset=0-65536 HTTP/1.1", 422, id="CPU 65536"),
    pytest.param(b"GET /plan?cpuset=0-4294967295 HTTP/1.1", 422, id="CPU 4294967295"),
]


@pytest.mark.parametrize(("head", "status"), REQUESTS)
def test_whatever_is_asked_the_answer_is_http_and_one_line(
    daemon: Daemon, head: bytes, status: int
) -> None:
    lines = len(daemon.lines)
    answer = say(daemon, head + b"\r\nhost: x\r\n\r\n")
    top, _, body = answer.partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 %d " % status), answer
    assert body.count(b"\n") == (0 if head.startswith(b"HEAD") else 1)
    assert b"Traceback" not in body
    assert daemon.get("/healthz").status == 200
    assert not [line for line in daemon.lines[lines:] if "bug" in line or "Traceback" in line]


def test_a_head_of_64_kib_is_answered_and_a_byte_more_refused(daemon: Daemon) -> None:
    head = REQUEST.removesuffix(b"\r\n") + b"a: "
    taken = say(daemon, head + b"b" * (MAX_HEAD - len(head) - 4) + b"\r\n\r\n")
    assert taken.endswith(ANSWER)
    before = refused(daemon)["head_size"]
    answer = say(daemon, head + b"b" * (MAX_HEAD - len(head) - 3) + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert refused(daemon)["head_size"] == before + 1


def test_slow_clients_are_ended_in_their_time(daemon: Daemon) -> None:
    """One sends nothing, one half a head, one a byte now and then, one has its answer."""
    began = time.monotonic()
    ends: dict[str, float] = {}
    said: dict[str, bytes] = {}
    with ExitStack() as stack:
        slow = {
            name: stack.enter_context(connect(daemon)) for name in ("none", "half", "drip", "idle")
        }
        slow["half"].sendall(REQUEST[:20])
        slow["idle"].sendall(REQUEST)
        left = {connection: name for name, connection in slow.items()}
        drops = iter(REQUEST)
        while left and time.monotonic() < began + REQUEST_SECONDS + PATIENCE:
            if slow["drip"] in left:
                with suppress(BrokenPipeError):  # it has ended just now
                    slow["drip"].send(bytes([next(drops)]))
            for connection in select.select([*left], [], [], 0.3)[0]:
                if part := _received(connection):
                    said[left[connection]] = said.get(left[connection], b"") + part
                else:
                    ends[left.pop(connection)] = time.monotonic() - began
    assert IDLE_SECONDS <= ends["idle"] < REQUEST_SECONDS
    assert all(
        REQUEST_SECONDS <= ends[name] < REQUEST_SECONDS + 5 for name in ("none", "half", "drip")
    )
    assert said.keys() == {"half", "drip", "idle"}
    assert said["half"].startswith(b"HTTP/1.1 408 ")
    assert said["drip"].startswith(b"HTTP/1.1 408 ")
    assert said["idle"].endswith(ANSWER)


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""


@needs_root
def test_a_user_has_1024_connections_and_costs_the_others_none(folder: Path) -> None:
    with running(folder, "--machine", "dgx-a100") as daemon, ExitStack() as stack:
        with holding(daemon, 65534, MOST_OF_ONE + 1):
            eventually(lambda: refused(daemon)["caller"] == 1, "one too many is refused")
            assert daemon.get(TARGET).body == ANSWER
        held = [stack.enter_context(connect(daemon)) for _ in range(MOST_OF_ONE)]
        with connect(daemon) as one_more:
            answer = everything(one_more)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert answer.endswith(
            b"this caller has as many connections open as one may have; close some\n"
        )
        held[0].sendall(REQUEST)
        assert everything(held[0]).endswith(ANSWER)
        told = [line for line in daemon.lines if "as many connections open" in line]
        assert [re.search(r"uid (\d+)", line)[1] for line in told if "uid" in line] == ["65534"]  # type: ignore[index]


@needs_root
def test_a_user_with_many_requests_keeps_nobody_else_waiting(folder: Path) -> None:
    """All of them lie there before another's, whose answer says how many were answered before."""
    with running(folder, "--machine", "dgx-a100") as daemon, ExitStack() as stack:
        with being(65534):
            other = stack.enter_context(connect(daemon))
        greedy = [stack.enter_context(connect(daemon)) for _ in range(200)]
        for connection in (*greedy, other):  # when they are answered, all of them are accepted
            connection.sendall(REQUEST)
        assert all(it.recv(65536).startswith(b"HTTP/1.1 200 ") for it in (*greedy, other))
        before = plans(daemon.get("/metrics").text)
        daemon.signal(signal.SIGSTOP)
        for number, connection in enumerate(greedy):
            connection.sendall(get(f"/plan?ranks=64&mode=node&cpuset=0-{number + 20}"))
        other.sendall(get("/metrics", "connection: close"))
        daemon.signal(signal.SIGCONT)
        with other.makefile() as answer:
            assert plans(answer.read()) - before < len(greedy) // 2


def plans(metrics: str) -> float:
    """Return how many plan requests have been answered."""
    found = re.findall(r"^affinityd_plans_total\{.*\} (\S+)$", metrics, re.MULTILINE)
    return sum(map(float, found))


def test_those_who_ask_and_go_do_not_fill_the_memory(folder: Path) -> None:
    head = get("/plan?gpus=" + "0" * 60_000)
    with running(folder, "--machine", "dgx-a100") as daemon:
        before = peak(daemon.process.pid)
        for _ in range(2000):
            with connect(daemon) as connection:
                connection.sendall(head)
        eventually(lambda: is_ready(daemon), "there is room for others")
        assert peak(daemon.process.pid) - before < GROWTH


LONG = MAX_HEAD - 100  #: bytes of a head

FLOODS = [
    pytest.param(lambda _: b"GET /plan?gpus=" + b"0" * LONG, id="half heads"),
    pytest.param(lambda n: get(f"/plan?gpus={n}" + "0" * LONG), id="requests that wait"),
    pytest.param(lambda _: REQUEST * 10_000, id="pipelines"),
    pytest.param(lambda _: get("/plan?ranks=256&mode=all"), id="answers that are not taken"),
]


@needs_root
@pytest.mark.parametrize("flood", FLOODS)
def test_a_user_with_a_thousand_connections_does_not_fill_the_memory(
    folder: Path, flood: Callable[[int], bytes]
) -> None:
    with running(folder, "--machine", "dgx-a100") as daemon, ExitStack() as stack:
        before = peak(daemon.process.pid)
        with being(65534):
            crowd = [stack.enter_context(connect(daemon)) for _ in range(1000)]
        for _ in range(3):
            for number, connection in enumerate(crowd):
                connection.settimeout(0)
                with suppress(BlockingIOError, ConnectionError):
                    connection.sendall(flood(number))
            assert daemon.get(TARGET).body == ANSWER
        assert peak(daemon.process.pid) - before < GROWTH


def test_those_who_end_before_they_take_an_answer_do_not_fill_the_log(folder: Path) -> None:
    with running(folder, "--machine", "dgx-a100") as daemon:
        with ExitStack() as stack:
            crowd = [stack.enter_context(connect(daemon)) for _ in range(100)]
            for connection in crowd:
                connection.sendall(get("/plan?ranks=64&mode=all"))
            eventually(lambda: len(select.select(crowd, [], [], 0)[0]) == 100, "they are answered")
            for connection in crowd:
                connection.sendall(get("/healthz"))
                connection.shutdown(socket.SHUT_WR)
            assert daemon.get("/healthz").status == 200  # in its turn, which comes after theirs
        assert daemon.stop() == 0
        assert not [line for line in daemon.lines if line.startswith("error")]


@needs_root
def test_few_files_are_no_reason_for_a_user_to_keep_the_others_out(folder: Path) -> None:
    before = ("prlimit", "--nofile=128:128")
    with running(folder, "--machine", "dgx-a100", before=before) as daemon:
        with holding(daemon, 65534, 200):
            for _ in range(50):
                assert daemon.get(TARGET).body == ANSWER
            files = len([*Path(f"/proc/{daemon.process.pid}/fd").iterdir()])
            assert files < 128
        assert refused(daemon)["caller"] >= 200 - 16
        assert daemon.process.poll() is None


def test_the_limit_of_files_is_raised_to_what_it_may_be(tmp_path: Path) -> None:
    with running(
        tmp_path, "--machine", "dgx-a100", before=("prlimit", "--nofile=128:4096")
    ) as daemon:
        limits = Path(f"/proc/{daemon.process.pid}/limits").read_text()
        assert re.search(r"Max open files +4096 +4096", limits)


def test_an_answer_that_nobody_takes_is_given_up_after_a_minute(tmp_path: Path) -> None:
    """The server is the daemon's; the minute passes by the argument of a sweep."""
    body = b"x" * 10_000_000

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def run() -> None:
        connections = Connections(RefusalLog(lambda _reason: None), most=10)
        server = Server(app, connections, lambda _query, _scope: None)
        listener = listen_unix(tmp_path / "s")
        serving = asyncio.ensure_future(server.serve([listener.socket]))
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        writer.write(REQUEST)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        now = asyncio.get_running_loop().time()
        for seconds in (IDLE_SECONDS + 1, ANSWER_SECONDS - 1):
            sweep(connections, now + seconds)
            await asyncio.sleep(0.1)
            assert len(connections) == 1
        sweep(connections, now + ANSWER_SECONDS + 1)
        await asyncio.sleep(0.1)
        assert len(connections) == 0
        rest = await reader.read()
        assert len(rest) < len(body)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        server.should_exit = True
        await serving
        listener.close()

    uvloop.run(run())
