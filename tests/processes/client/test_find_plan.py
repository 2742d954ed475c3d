"""A process requests its plan from the server at a unix socket, or makes the plan itself."""

import shutil
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd import config
from affinityd.cli import main
from affinityd.client import ask_daemon, local_plan
from affinityd.cpuset import parse_list
from affinityd.errors import (
    REFUSAL_ERRORS,
    AffinityError,
    ApplyError,
    DaemonError,
    NoDaemonError,
    UnknownParameterError,
)
from affinityd.request.process_plan import ProcessPlan, read_plan
from affinityd.topology.document import write_node
from affinityd.topology.model import Node
from tests.support.asking import is_one_short_line
from tests.support.daemons import PATIENCE, Daemon, running
from tests.support.machines.facts import machine
from tests.support.servers import Behaviour, answering, hanging, http, serving
from tests.support.tables import words

TIMEOUT = 0.3  #: seconds after which a client gives up

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
def test_without_a_listener_there_is_no_daemon(tmp_path: Path, path: str, reason: str) -> None:
    (tmp_path / "file").touch()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "left"))
    path = path.format(tmp_path)
    error = refused(path)
    assert isinstance(error, NoDaemonError)
    assert str(error).startswith(f"no daemon at {path}: ")
    assert str(error).endswith(reason)


# Slow servers.


def trickle(connection: socket.socket, over: threading.Event) -> None:
    for byte in http("200 OK", PLAN):
        connection.sendall(bytes([byte]))
        if over.wait(0.05):
            return


@pytest.mark.parametrize(
    ("behave", "timeout", "asked"),
    [
        pytest.param(hanging, TIMEOUT, "", id="hangs"),
        pytest.param(trickle, TIMEOUT, "", id="byte by byte"),
        pytest.param(hanging, TIMEOUT, "0," * 10**6, id="reads nothing of a long request"),
        pytest.param(answering(http("200 OK", PLAN)), 0, "", id="the time is over at once"),
    ],
)
def test_a_slow_server_is_abandoned_at_the_deadline(
    tmp_path: Path, behave: Behaviour, timeout: float, asked: str
) -> None:
    with serving(tmp_path / "s", behave) as path:
        told = str(refused(path, timeout, visible=asked))
    assert told == f"the daemon at {path} did not answer in time"


# Servers that are no daemon.


def endless(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while not over.is_set():
        connection.sendall(b"a: " + b"a" * 2**20)


#: Answers that no daemon gives.
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
        (http("422 Oh", b""), "answered 422: ''"),  # a refusal without a message
        (lambda _connection, _over: None, ""),  # closes at once
    ],
    ids=lambda it: ascii(it[:40]) if isinstance(it, bytes) else "",
)
def test_an_answer_that_no_daemon_gives_is_quoted_in_an_error(
    tmp_path: Path, answer: bytes | Behaviour, told: str
) -> None:
    behave = answering(answer) if isinstance(answer, bytes) else answer
    with serving(tmp_path / "s", behave) as path:
        error = refused(path)
    assert not isinstance(error, NoDaemonError)
    assert told in str(error)
    assert str(path) in str(error)


@pytest.mark.parametrize("refusal", REFUSAL_ERRORS)
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


ALL = "0-255"  #: a DGX A100's CPUs
RESERVED = "48,176"
NOWHERE = "/nonexistent/affinityd.sock"

LINES = {
    "AFFINITYD_CPULIST": "4-7",
    "AFFINITYD_ALLOWED": "0-7",
    "AFFINITYD_MEMORY_NODES": "1",
    "AFFINITYD_LOCALITY": "local",
    "AFFINITYD_THREADS": "4",
}


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a machine in the settings, so that clients here can plan without a daemon."""
    for name in ("ROOT", "RESERVED_CPUS", "SOCKET"):
        monkeypatch.delenv(f"AFFINITYD_{name}", raising=False)
    monkeypatch.setenv("AFFINITYD_CONFIG", "/nonexistent")
    monkeypatch.setenv("AFFINITYD_MACHINE", "dgx-a100")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("place")
    with running(folder, "--machine", "dgx-a100", f"--reserved-cpus={RESERVED}") as daemon:
        yield daemon


@pytest.fixture
def stopped(daemon: Daemon, tmp_path: Path) -> Path:
    """Return the socket path of a stopped daemon, like `daemon`, that left its node.json."""
    shutil.copy(daemon.socket.with_name("node.json"), tmp_path)
    return tmp_path / "affinityd.sock"


@contextmanager
def answering_at(path: Path, body: str | None, status: str = "200 OK") -> Iterator[str]:
    with serving(path, hanging if body is None else answering(http(status, body.encode()))):
        yield str(path)


def find(
    *sockets: str | Path, asked: str = "gpus=0", timeout: float = PATIENCE, forks: bool = False
) -> ProcessPlan:
    paths, query = [str(path) for path in sockets], {"cpuset": ALL, **words(asked)}
    return ask_daemon.find_plan([*query.items()], paths, time.monotonic(), timeout, forks=forks)


def facts(found: ProcessPlan) -> list[object]:
    return [getattr(found, it) for it in ("cpus", "allowed", "locality", "memory_nodes", "threads")]


def shown(lines: Mapping[str, str]) -> str:
    return "".join(f"{name}={text}\n" for name, text in lines.items())


def test_a_plan_is_read_from_its_lines() -> None:
    found = read_plan(shown({**LINES, "AFFINITYD_RANK_0_CPULIST": "4-7", "LATER": "?"}))
    assert facts(found) == [parse_list("4-7"), parse_list("0-7"), "local", frozenset({1}), 4]
    nowhere = read_plan(shown({**LINES, "AFFINITYD_MEMORY_NODES": ""}))
    assert nowhere.memory_nodes == frozenset()
    whole = read_plan(shown({**LINES, "AFFINITYD_CPULIST": "0-7"}))
    assert whole.cpus == whole.allowed


@pytest.mark.parametrize(
    "line",
    [
        *LINES,
        *("AFFINITYD_CPULIST=", "AFFINITYD_CPULIST=4-7,8", "AFFINITYD_CPULIST=four"),
        *("AFFINITYD_LOCALITY=near it", "AFFINITYD_MEMORY_NODES=x\n", "AFFINITYD=maybe"),
        *("AFFINITYD_THREADS=", "AFFINITYD_THREADS=0", "AFFINITYD_THREADS=" + "9" * 5000),
    ],
    ids=lambda line: line[:40],
)
def test_a_malformed_plan_is_a_value_error_of_one_line(line: str) -> None:
    name, is_there, text = line.partition("=")
    lines = {**LINES, name: text} if is_there else {it: LINES[it] for it in LINES if it != name}
    with pytest.raises(ValueError, match=r"^.{1,299}$") as caught:
        read_plan(shown(lines))
    assert str(caught.value).isprintable()


# The source of a plan: a daemon, or the process itself.


@pytest.mark.parametrize(
    "asked", ["", "mode=unique_interleaved ranks=16 rank=9 cpuset=32-63,160-191"]
)
def test_the_plan_is_the_same_when_the_daemon_has_stopped(
    daemon: Daemon, stopped: Path, asked: str
) -> None:
    of_daemon, of_file = (find(it, asked=asked) for it in (daemon.socket, stopped))
    assert facts(of_daemon) == facts(of_file)
    assert (of_daemon.source, of_daemon.trouble) == ("daemon", None)
    assert (of_file.source, of_file.trouble) == ("node.json", None)
    assert not of_daemon.cpus & parse_list(RESERVED)


def test_the_first_daemon_that_answers_is_asked(daemon: Daemon, tmp_path: Path) -> None:
    with answering_at(tmp_path / "s", "", "500 Oh") as bad:
        for sockets in ((NOWHERE, daemon.socket), (bad, daemon.socket), (daemon.socket, bad)):
            found = find(*sockets)
            assert (found.source, found.trouble) == ("daemon", None)


# Trouble.

UNREAD = "Malformed request: env: 'AFFINITYD_SLICE' is not read; known are HIP_VISIBLE_DEVICES"
OLDER = "Unknown parameter: 'more' is no parameter; did you mean mode?"


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ("no topology", "503 Oh", "answered 503: 'no topology'"),
        ("nonsense", "200 OK", "answered a plan without 'AFFINITYD_CPULIST'"),
        (OLDER, "422 No", "runs another release: 'more' is no parameter"),
        (UNREAD, "422 No", "runs another release: env: 'AFFINITYD_SLICE' is not read"),
    ],
)
def test_a_plan_made_without_the_daemon_says_why_the_daemon_made_no_plan(
    stopped: Path, body: str, status: str, told: str
) -> None:
    with answering_at(stopped, body, status) as path:
        found = find(path, asked="gpus=0 cpuset=0-5")
    assert found.source == "node.json"
    assert str(found.trouble).startswith(f"the daemon at {path} {told}")
    assert found.cpus <= parse_list("0-5")


def test_a_daemon_that_hangs_leaves_time_for_a_local_plan(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask_daemon, "READING", PATIENCE)
    with answering_at(stopped, None) as path:
        found = find(path, stopped.with_name("another"), timeout=0.2, forks=True)
    trouble = f"the daemon at {path} did not answer in time"
    assert (found.source, found.trouble) == ("node.json", trouble)


def test_a_plan_on_a_machine_that_hangs_ends_at_its_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_plan, "find_node", lambda _sockets: time.sleep(PATIENCE))
    with pytest.raises(ApplyError, match=r"no plan within 1\.8 s of the start; a larger timeout"):
        find(NOWHERE, timeout=0.3, forks=True)


@pytest.mark.parametrize(
    "refusal", [it for it in REFUSAL_ERRORS if it is not UnknownParameterError]
)
def test_a_daemon_s_refusal_is_final(stopped: Path, refusal: type[AffinityError]) -> None:
    body = f"{refusal.title}: no"
    with answering_at(stopped, body, f"{refusal.status} No") as path, pytest.raises(refusal):
        find(path)


NODE = Node(machine("dgx-a100"), frozenset({0, 128}), generation=3)


@pytest.fixture
def socket_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the path of a daemon's socket, with no settings about a machine."""
    monkeypatch.delenv("AFFINITYD_MACHINE")
    (tmp_path / "run").mkdir()
    return str(tmp_path / "run" / "affinityd.sock")


@pytest.fixture
def published(socket_path: str) -> Path:
    path = Path(socket_path).with_name("node.json")
    write_node(path, NODE)
    return path


def query(*more: str) -> list[str]:
    pairs = ("format=shell", "cpuset=0-255", "granted=minor:1", *more)
    return [word for pair in pairs for word in ("--query", pair)]


def test_a_script_gets_the_daemon_s_answer_from_node_json(
    published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for pairs, said in (
        ((), "AFFINITYD_CPULIST="),
        (("env=SLURM_JOB_ID=7", "env=CUDA_VISIBLE_DEVICES=0"), "AFFINITYD_CPULIST="),
        (("mode=x",), "Malformed request: mode: 'x' is not one of"),
        (("env=CUDA_VISIBLE_DEVICES=9",), "No such GPU: "),
    ):
        assert main(["plan", "--node-file", f"{published}", *query(*pairs)]) == 0
        assert capsys.readouterr().out.startswith(said)
    published.unlink()
    main(["plan", "--node-file", f"{published}", *query()])
    assert "No such file" in capsys.readouterr().out


def test_a_replayed_node_beside_the_default_socket_is_ignored(
    socket_path: str, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    otherwise = socket_path.replace("/run/", "//run/./")
    for default, replayed, source in (
        *(
            (socket_path, True, "sysfs"),
            (socket_path, False, "node.json"),
            ("/other", True, "node.json"),
        ),
        (otherwise, True, "sysfs"),
    ):
        monkeypatch.setattr(config, "SYSTEM_SOCKET", default)
        write_node(published, replace(NODE, replayed=replayed))
        for spelled in (socket_path, otherwise):
            assert local_plan.find_node([spelled]).source == source
