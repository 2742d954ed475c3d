"""Asking for a plan over a unix socket, of the daemon and of whatever else may listen there."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from affinityd import machines
from affinityd.client import ask_daemon
from affinityd.client.local_plan import plan_on_node
from affinityd.cpuset import format_list
from affinityd.errors import REFUSALS, AffinityError, DaemonError, NoDaemonError
from affinityd.request.formats import render
from affinityd.topology.model import Node
from tests.support.asking import is_one_short_line
from tests.support.daemons import PATIENCE, Daemon, running
from tests.support.servers import Behaviour, answering, hanging, http, serving

TIMEOUT = 0.3  #: seconds that a client has where nothing is answered

PLAN = b"AFFINITYD_CPULIST=0\n"


def ask(path: Path | str, timeout: float = PATIENCE, **parameters: str) -> str:
    return ask_daemon.ask_plan(str(path), parameters.items(), time.monotonic() + timeout)


def refused(path: Path | str, timeout: float = PATIENCE, **parameters: str) -> DaemonError:
    with pytest.raises(DaemonError) as caught:
        ask(path, timeout, **parameters)
    assert is_one_short_line(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("{}/none", "No such file or directory"),
        ("{}/left", "Connection refused"),
        ("{}/file", "Connection refused"),
        ("{}/file/s", "Not a directory"),
        ("/" + "x" * 200, "path too long"),
    ],
)
def test_no_listener_is_no_daemon(tmp_path: Path, path: str, reason: str) -> None:
    (tmp_path / "file").touch()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "left"))
    path = path.format(tmp_path)
    error = refused(path)
    assert isinstance(error, NoDaemonError)
    assert str(error).startswith(f"no daemon at {path}: ")
    assert str(error).endswith(reason)


# What is slow.


def trickle(connection: socket.socket, over: threading.Event) -> None:
    for byte in http("200 OK", PLAN):
        connection.sendall(bytes([byte]))
        if over.wait(0.05):
            return


def never_close(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(http("200 OK", PLAN, length=len(PLAN) + 1))
    over.wait()


@pytest.mark.parametrize(
    ("behave", "timeout", "asked"),
    [
        pytest.param(hanging, TIMEOUT, "", id="hangs"),
        pytest.param(trickle, TIMEOUT, "", id="byte by byte"),
        pytest.param(never_close, TIMEOUT, "", id="never closes"),
        pytest.param(hanging, TIMEOUT, "0," * 10**6, id="reads nothing of a long request"),
        pytest.param(answering(http("200 OK", PLAN)), 0, "", id="the time was over before"),
    ],
)
def test_a_slow_server_is_left_at_the_deadline(
    tmp_path: Path, behave: Behaviour, timeout: float, asked: str
) -> None:
    with serving(tmp_path / "s", behave) as path:
        told = str(refused(path, timeout, visible=asked))
    assert told == f"the daemon at {path} did not answer in time"


# What is no daemon.


def endless(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while not over.is_set():
        connection.sendall(b"a: " + b"a" * 2**20)


#: What is no answer of a daemon's.
NO_DAEMON = [
    *(b"", b"\xff\0" * 999, b"220 mail ESMTP\r\n", b"HTTP/1.1 \r\n\r\n"),
    *(b"HTTP/1.1 2\xb20 OK\r\n\r\n", b"HTTP/1.1 2000 OK\r\ncontent-length: 0\r\n\r\n"),
    b"HTTP/2 200\r\ncontent-length: 0\r\n\r\n",
    *(http("200 OK", PLAN, length=len(PLAN) + more) for more in (1, -1)),
    *(http("200 OK", PLAN, "content-length: -1"), http("200 OK", b"\n" * 10**7)),
    http("200 OK", b"14\r\n" + PLAN, "transfer-encoding: chunked"),
]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        *((it, "is not affinityd: ") for it in [*NO_DAEMON, endless]),
        (http("200 OK", b"\xff"), "is not affinityd: "),
        (http("500 Oh", b"a\nb\x1b[2J"), "answered 500: 'a\\nb\\x1b[2J'"),
        (http("503 Oh", b"x" * 999), "answered 503: 'xxx"),
        (http("422 Oh", b""), "answered 422: ''"),  # a refusal's status without its words
        (lambda _connection, _over: None, ""),  # closes at once
    ],
    ids=lambda it: ascii(it[:40]) if isinstance(it, bytes) else "",
)
def test_another_answer_than_a_daemon_s_is_an_error_that_quotes_it(
    tmp_path: Path, answer: bytes | Behaviour, told: str
) -> None:
    behave = answering(answer) if isinstance(answer, bytes) else answer
    with serving(tmp_path / "s", behave) as path:
        error = refused(path)
    assert not isinstance(error, NoDaemonError)
    assert told in str(error)
    assert str(path) in str(error)


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refusal_is_one_bounded_printable_line(
    tmp_path: Path, refusal: type[AffinityError]
) -> None:
    body = f"{refusal.title}: \x1b[2Ja\nb\x9b\u202e".encode() + b"x" * 10**5
    with (
        serving(tmp_path / "s", answering(http(f"{refusal.status} Oh", body))) as path,
        pytest.raises(refusal) as caught,
    ):
        ask(path)
    assert str(caught.value).startswith("\\x1b[2Ja\\nb\\x9b\\u202exxx")
    assert len(str(caught.value)) < 1100


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


ODD = (" 1, 2", "+1", "1%2C2", "%31", "1&gpus=0", "1#2", "1;2", "1=2", "é,1", "?", "/", '"', "\\")


@given(
    st.sampled_from(["visible", "gpus", "mode"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(ODD),
)
@example("min_physical_cores", "99")
@example("color", "blue")
@example("cpuset", format_list(range(0, 8192, 2)))  # of the largest machine, in one request
def test_the_daemon_answers_any_query_as_the_planner_does(
    daemon: Daemon, name: str, text: str
) -> None:
    node, question = Node(machines.load("dgx-a100")), {name: text}
    told = outcome(lambda: ask(daemon.socket, PATIENCE, **question))
    assert told == outcome(lambda: render(plan_on_node(node, [*question.items()]), "shell"))
