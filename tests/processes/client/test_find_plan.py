"""A process's plan: who is asked, in what order, and what becomes of trouble."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from affinityd.client import ask_daemon, local_plan
from affinityd.client.ask_daemon import ProcessPlan
from affinityd.cpuset import parse_list
from affinityd.errors import REFUSALS, AffinityError, ApplyError, UnknownParameterError
from tests.support.daemons import PATIENCE, Daemon, running
from tests.support.servers import answering as always
from tests.support.servers import hanging, http, serving
from tests.support.tables import words

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
    """Have this machine be one on which everything here could be planned without a daemon."""
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
    """Return where the socket was of a daemon like it, which left its node behind."""
    shutil.copy(daemon.socket.with_name("node.json"), tmp_path)
    return tmp_path / "affinityd.sock"


@contextmanager
def answering(path: Path, body: str | None, status: str = "200 OK") -> Iterator[str]:
    """Listen, and give everybody the same answer; None: no answer at all."""
    with serving(path, hanging if body is None else always(http(status, body.encode()))):
        yield str(path)


def find(
    *sockets: str | Path, asked: str = "gpus=0", timeout: float = PATIENCE, bounded: bool = False
) -> ProcessPlan:
    paths, query = [str(path) for path in sockets], {"cpuset": ALL, **words(asked)}
    return ask_daemon.find_plan([*query.items()], paths, time.monotonic(), timeout, bounded=bounded)


def facts(found: ProcessPlan) -> list[object]:
    return [getattr(found, it) for it in ("cpus", "allowed", "locality", "memory_nodes", "threads")]


def shown(lines: Mapping[str, str]) -> str:
    return "".join(f"{name}={text}\n" for name, text in lines.items())


def test_a_plan_is_read_from_its_lines() -> None:
    found = ProcessPlan(shown({**LINES, "AFFINITYD_RANK_0_CPULIST": "4-7", "LATER": "?"}))
    assert facts(found) == [parse_list("4-7"), parse_list("0-7"), "local", frozenset({1}), 4]
    nowhere = ProcessPlan(shown({**LINES, "AFFINITYD_MEMORY_NODES": ""}))
    assert nowhere.memory_nodes == frozenset()


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
        ProcessPlan(shown(lines))
    assert str(caught.value).isprintable()


# What says it.


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
    with answering(tmp_path / "s", "", "500 Oh") as bad:
        for sockets in ((NOWHERE, daemon.socket), (bad, daemon.socket), (daemon.socket, bad)):
            found = find(*sockets)
            assert (found.source, found.trouble) == ("daemon", None)


# Trouble.

OLDER = "Unknown parameter: 'more' is no parameter; did you mean mode?"


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ("no topology", "503 Oh", "answered 503: 'no topology'"),
        ("nonsense", "200 OK", "answered a plan without 'AFFINITYD_CPULIST'"),
        (OLDER, "422 No", "runs another release: 'more' is no parameter"),
    ],
)
def test_a_plan_without_the_daemon_says_what_is_wrong_with_the_daemon(
    stopped: Path, body: str, status: str, told: str
) -> None:
    with answering(stopped, body, status) as path:
        found = find(path, asked="gpus=0 cpuset=0-5")
    assert found.source == "node.json"
    assert str(found.trouble).startswith(f"the daemon at {path} {told}")
    assert found.cpus <= parse_list("0-5")


def test_a_daemon_that_hangs_leaves_time_for_a_plan_without_it(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask_daemon, "READING", PATIENCE)
    with answering(stopped, None) as path:
        found = find(path, stopped.with_name("another"), timeout=0.2, bounded=True)
    trouble = f"the daemon at {path} did not answer in time"
    assert (found.source, found.trouble) == ("node.json", trouble)


def test_a_bounded_plan_ends_at_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_plan, "find_node", lambda _sockets: time.sleep(1000))
    with pytest.raises(ApplyError, match=r"could not be read in 1\.5 s; --timeout"):
        find(NOWHERE, timeout=0.3, bounded=True)


@pytest.mark.parametrize("refusal", [it for it in REFUSALS if it is not UnknownParameterError])
def test_a_daemon_s_refusal_is_final(stopped: Path, refusal: type[AffinityError]) -> None:
    body = f"{refusal.title}: no"
    with answering(stopped, body, f"{refusal.status} No") as path, pytest.raises(refusal):
        find(path)
