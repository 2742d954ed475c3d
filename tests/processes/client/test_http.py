"""Asking for a plan over a unix socket, of the daemon and of whatever else may listen there."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd import machines
from affinityd.client import http as client
from affinityd.client.local_plan import plan_on_node
from affinityd.cpuset import format_list
from affinityd.errors import (
    AffinityError,
    DaemonError,
    InvalidRequestError,
    NoDaemonError,
    NoSuchGpuError,
    UnsatisfiableError,
)
from affinityd.request.formats import render
from affinityd.topology.model import Node
from tests.support.daemons import BELIEVED, PATIENCE, Daemon, running
from tests.support.servers import Behaviour, answering, hanging, http, serving

TIMEOUT = 0.3  #: seconds that a client has where nothing is answered

PLAN = b"AFFINITYD_CPULIST=0\n"


def ask(path: Path | str, timeout: float = PATIENCE, **parameters: str) -> str:
    """Return the answer, which comes in time, or an error that does."""
    start = time.monotonic()
    try:
        return client.ask_plan(str(path), parameters, start + timeout)
    finally:
        assert time.monotonic() - start < timeout + PATIENCE


def refused(path: Path | str, timeout: float = PATIENCE) -> DaemonError:
    """Return why there was no answer, which is told on one line."""
    with pytest.raises(DaemonError) as caught:
        ask(path, timeout)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300
    return caught.value


# Nobody.


def test_where_nobody_listens_there_is_no_daemon(tmp_path: Path) -> None:
    assert str(refused(tmp_path / "s")) == f"no daemon at {tmp_path}/s: No such file or directory"


def test_a_socket_that_was_left_behind_is_no_daemon(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "s"))
    assert str(refused(tmp_path / "s")) == f"no daemon at {tmp_path}/s: Connection refused"


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda path: path.touch(), id="a file"),
        pytest.param(lambda path: path.mkdir(), id="a folder"),
        pytest.param(lambda path: path.symlink_to("none"), id="a link to nothing"),
    ],
)
def test_what_is_no_socket_is_no_daemon(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "s")
    assert isinstance(refused(tmp_path / "s"), NoDaemonError)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/etc/passwd/s", "Not a directory"),
        ("/run/" + "x" * 200, "path too long"),
    ],
    ids=["in a file", "longer than a socket's"],
)
def test_where_nobody_can_listen_there_is_no_daemon(path: str, reason: str) -> None:
    error = refused(path)
    assert isinstance(error, NoDaemonError)
    assert str(error).endswith(reason)


# Somebody who is slow.


def trickle(connection: socket.socket, over: threading.Event) -> None:
    for byte in http("200 OK", PLAN):
        connection.sendall(bytes([byte]))
        if over.wait(0.05):
            return


def never_close(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(http("200 OK", PLAN, length=len(PLAN) + 1))
    over.wait()


@pytest.mark.parametrize("behave", [hanging, trickle, never_close])
def test_who_is_too_slow_is_left_in_time(tmp_path: Path, behave: Behaviour) -> None:
    with serving(tmp_path / "s", behave) as path:
        assert str(refused(path, TIMEOUT)) == f"the daemon at {path} did not answer in time"


def test_who_reads_nothing_of_a_long_request_is_left_in_time(tmp_path: Path) -> None:
    with serving(tmp_path / "s", hanging) as path, pytest.raises(DaemonError, match="in time"):
        ask(path, TIMEOUT, visible="0," * 10**6)


def test_a_deadline_that_is_over_is_heeded_before_anything_is_sent(tmp_path: Path) -> None:
    plan = answering(http("200 OK", PLAN))
    with serving(tmp_path / "s", plan) as path, pytest.raises(DaemonError, match="in time"):
        client.ask_plan(str(path), {}, time.monotonic())


@contextmanager
def queue_full(path: Path) -> Iterator[socket.socket]:
    """Listen, with as many connections waiting as the kernel takes."""
    waiting = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        with suppress(BlockingIOError):
            while True:
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].settimeout(0)
                waiting[-1].connect(str(path))
        yield listener
        for connection in waiting:
            connection.close()


def test_a_queue_that_stays_full_is_left_in_time(tmp_path: Path) -> None:
    with queue_full(tmp_path / "s"):
        assert str(refused(tmp_path / "s", TIMEOUT)).endswith("did not answer in time")


def test_a_queue_that_gets_shorter_is_waited_for(tmp_path: Path) -> None:
    def serve() -> None:
        time.sleep(TIMEOUT / 3)
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(TimeoutError):
                    connection.settimeout(TIMEOUT / 10)  # the first ones never ask
                    connection.recv(65536)
                    connection.sendall(http("200 OK", PLAN))

    with queue_full(tmp_path / "s") as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        assert ask(tmp_path / "s") == PLAN.decode()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


# Somebody else.


def endless(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while not over.is_set():
        connection.sendall(b"a: " + b"a" * 2**20)


def close(_connection: socket.socket, _over: threading.Event) -> None:
    pass


@pytest.mark.parametrize(
    ("behave", "told"),
    [
        pytest.param(close, "", id="closes at once"),
        pytest.param(answering(b""), "is no affinityd: \"b''\"", id="says nothing"),
        pytest.param(answering(b"\xff\0" * 999), "is no affinityd", id="binary"),
        pytest.param(answering(b"220 mail ESMTP\r\n"), "is no affinityd", id="another protocol"),
        pytest.param(answering(b"\r\n\r\n"), "is no affinityd", id="an empty head"),
        pytest.param(answering(b"HTTP/1.1 \r\n\r\n"), "is no affinityd", id="no status"),
        pytest.param(answering(b"HTTP/1.1 2\xb20 OK\r\n\r\n"), "is no affinityd", id="no number"),
        pytest.param(
            answering(b"HTTP/1.1 2000 OK\r\ncontent-length: 0\r\n\r\n"), "is no aff", id="2000"
        ),
        pytest.param(answering(http("999 Oh", b"")), "answered 999: ''", id="999"),
        pytest.param(
            answering(http("200 OK", PLAN, f"content-length: {'9' * 9999}")), "is no aff", id="9…"
        ),
        pytest.param(endless, "is no affinityd", id="without end"),
        pytest.param(answering(b"HTTP/2 200\r\ncontent-length: 0\r\n\r\n"), "no aff", id="HTTP/2"),
        pytest.param(
            answering(http("200 OK", PLAN, length=len(PLAN) + 1)), "is no affinityd", id="cut off"
        ),
        pytest.param(
            answering(http("200 OK", PLAN, length=len(PLAN) - 1)), "is no affinityd", id="too long"
        ),
        pytest.param(answering(http("200 OK", PLAN, "a: b")), "is no affinityd", id="no length"),
        pytest.param(
            answering(http("200 OK", PLAN, "content-length: -1")), "is no affinityd", id="length -1"
        ),
        pytest.param(
            answering(http("200 OK", b"14\r\n" + PLAN, "transfer-encoding: chunked")),
            "is no affinityd",
            id="in chunks",
        ),
        pytest.param(answering(http("200 OK", b"\n" * 10**7)), "is no affinityd", id="10 MB"),
        pytest.param(answering(http("200 OK", b"\xff")), "answered what is no text", id="no text"),
        pytest.param(answering(http("500 Oh", b"")), "answered 500: ''", id="500, empty"),
        pytest.param(
            answering(http("500 Oh", b"a\nb\x1b[2J")), "answered 500: 'a\\nb\\x1b[2J'", id="500"
        ),
        pytest.param(answering(http("503 Oh", b"x" * 999)), "answered 503: 'xxx", id="503"),
        pytest.param(answering(http("301 Oh", b"")), "answered 301", id="301"),
        pytest.param(answering(http("404 Oh", b"<html>none\n")), "404", id="404 of another server"),
        pytest.param(answering(http("422 Oh", b"")), "422", id="422 of another server"),
    ],
)
def test_who_is_no_daemon_is_told_apart(tmp_path: Path, behave: Behaviour, told: str) -> None:
    with serving(tmp_path / "s", behave) as path:
        error = refused(path)
        assert not isinstance(error, NoDaemonError)
        assert told in str(error)
        assert str(path) in str(error)


def test_who_hangs_up_does_not_end_a_process_that_takes_sigpipe(tmp_path: Path) -> None:
    """As scripts do for `| head`; the request is long enough to be under way when it happens."""
    code = """
import signal, sys, time
from affinityd.client import http as client
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
try: client.ask_plan(sys.argv[1], {"visible": "0," * 10**6}, time.monotonic() + 60)
except client.DaemonError as error: print(error)
"""

    def hang_up(connection: socket.socket, _over: threading.Event) -> None:
        connection.recv(1)

    with serving(tmp_path / "s", hang_up) as path:
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)],
            env={"PYTHONPATH": os.pathsep.join(sys.path), **BELIEVED},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode != -signal.SIGPIPE
    assert "broke off" in done.stdout


@pytest.mark.parametrize("title", ["No such GPU", "Malformed request", "Cannot be satisfied"])
def test_a_refusal_does_nothing_to_a_terminal(tmp_path: Path, title: str) -> None:
    status = {"No such GPU": "404", "Malformed request": "422", "Cannot be satisfied": "409"}[title]
    answer = http(f"{status} Oh", f"{title}: \x1b[2Ja\nb\x9b\u202e".encode() + b"x" * 10**5)
    with (
        serving(tmp_path / "s", answering(answer)) as path,
        pytest.raises(AffinityError) as caught,
    ):
        ask(path)
    assert caught.value.title == title
    assert str(caught.value).startswith("\\x1b[2Ja\\nb\\x9b\\u202exxx")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1100


def test_names_of_fields_are_read_in_any_case(tmp_path: Path) -> None:
    answer = http("200 OK", PLAN, "Server: x", f"CONTENT-Length:{len(PLAN)} ", "x: y")
    with serving(tmp_path / "s", answering(answer)) as path:
        assert ask(path) == PLAN.decode()


# The daemon.


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("client"), "--machine", "dgx-a100") as daemon:
        yield daemon


def outcome(answer: Callable[[], str]) -> str | tuple[type[AffinityError], str]:
    try:
        return answer()
    except AffinityError as error:
        return type(error), str(error)


def over_the_socket(daemon: Daemon, question: Mapping[str, str]) -> object:
    return outcome(lambda: ask(daemon.socket, PATIENCE, **question))


def in_process(question: Mapping[str, str]) -> object:
    node = Node(machines.load("dgx-a100"))
    return outcome(lambda: render(plan_on_node(node, [question]), "shell"))


@pytest.mark.parametrize(
    ("question", "error"),
    [
        ({"gpus": "9"}, NoSuchGpuError),
        ({"visible": ""}, NoSuchGpuError),
        ({"visible": "none: at all"}, NoSuchGpuError),
        ({"min_physical_cores": "99"}, UnsatisfiableError),
        ({"mode": "best: of all"}, InvalidRequestError),
        ({"color": "blue"}, InvalidRequestError),
        ({"cpuset": "0\0"}, InvalidRequestError),
    ],
)
def test_the_daemon_refuses_as_the_planner_does(
    daemon: Daemon, question: Mapping[str, str], error: type[AffinityError]
) -> None:
    told = over_the_socket(daemon, question)
    assert told == in_process(question)
    assert isinstance(told, tuple)
    assert told[0] is error


@pytest.mark.parametrize(
    "text", ["\udcff", "0,\udce9", pytest.param("\ud800", id="half a surrogate pair")]
)
def test_what_is_no_utf_8_is_malformed_for_both(daemon: Daemon, text: str) -> None:
    for told in (over_the_socket(daemon, {"visible": text}), in_process({"visible": text})):
        assert isinstance(told, tuple)
        assert told[0] is InvalidRequestError


@pytest.mark.parametrize(
    "text",
    [
        *(" 1, 2", "1 ", "+1", "1%2C2", "%31", "1&gpus=0", "1#2", "1;2", "1=2", "é,1", "1\n2"),
        *("ROCR_VISIBLE_DEVICES=1;HIP_VISIBLE_DEVICES=0", "GPU-", "?", "/", '"', "'", "\\", "~"),
    ],
)
def test_a_text_is_read_by_the_daemon_as_it_was_given(daemon: Daemon, text: str) -> None:
    assert over_the_socket(daemon, {"visible": text}) == in_process({"visible": text})


@given(
    name=st.sampled_from(["visible", "gpus", "mode"]),
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.text("01,+%& =;\t"),
)
def test_whatever_the_text_the_daemon_reads_it_as_the_planner_does(
    daemon: Daemon, name: str, text: str
) -> None:
    assert over_the_socket(daemon, {name: text}) == in_process({name: text})


def test_a_plan_on_the_largest_machine_is_asked_for_in_one_request(daemon: Daemon) -> None:
    question = {"cpuset": format_list(range(0, 8192, 2)), "gpus": "0", "mode": "node"}
    told = over_the_socket(daemon, question)
    assert told == in_process(question)
    assert isinstance(told, str)
