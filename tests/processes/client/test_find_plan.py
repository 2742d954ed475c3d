"""A process's place: who is asked, in what order, and what becomes of trouble."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from affinityd.client import find_plan, local_plan
from affinityd.client.find_plan import ProcessPlan
from affinityd.cpuset import parse_list
from affinityd.errors import (
    AffinityError,
    ApplyError,
    DaemonError,
    InvalidRequestError,
    NoDaemonError,
    NoSuchGpuError,
    UnsatisfiableError,
)
from tests.support.daemons import PATIENCE, Daemon, running
from tests.support.servers import answering as always
from tests.support.servers import hanging, http, serving

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
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROOT", "MACHINE", "RESERVED_CPUS", "SOCKET"):
        monkeypatch.delenv(f"AFFINITYD_{name}", raising=False)
    monkeypatch.setenv("AFFINITYD_CONFIG", "/nonexistent")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("place")
    with running(folder, "--machine", "dgx-a100", f"--reserved-cpus={RESERVED}") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def stopped(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Daemon:
    """Return what a daemon like the other left behind when it was stopped."""
    folder = tmp_path_factory.mktemp("stopped")
    with running(folder, "--machine", "dgx-a100", f"--reserved-cpus={RESERVED}") as other:
        assert other.stop() == 0
    assert not other.socket.exists()
    assert daemon.socket.exists()
    return other


@contextmanager
def answering(path: Path, body: str | None, status: str = "200 OK") -> Iterator[str]:
    """Listen, and give everybody the same answer; None: no answer at all."""
    with serving(path, hanging if body is None else always(http(status, body.encode()))):
        yield str(path)


def find(
    question: Mapping[str, str], *sockets: str | Path, timeout: float = 10.0, bounded: bool = False
) -> ProcessPlan:
    asked: Sequence[Mapping[str, str]] = [{"cpuset": ALL, **question}]
    paths = [str(path) for path in sockets]
    return find_plan.find_plan(asked, paths, time.monotonic(), timeout, bounded=bounded)


def facts(found: ProcessPlan) -> Mapping[str, object]:
    names = ("allowed", "cpus", "locality", "memory_nodes", "threads")
    return {name: getattr(found, name) for name in names}


def lines(changed: Mapping[str, str | None]) -> Mapping[str, str]:
    """Return LINES with some of them changed; None: left out."""
    return {name: text for name, text in {**LINES, **changed}.items() if text is not None}


# The lines of a plan.


def test_a_place_is_read_from_the_lines_of_a_plan() -> None:
    found = ProcessPlan({**LINES, "AFFINITYD_RANK_0_CPULIST": "4-7", "LATER": "?"}, "daemon")
    assert facts(found) == {
        "cpus": parse_list("4-7"),
        "allowed": parse_list("0-7"),
        "memory_nodes": frozenset({1}),
        "locality": "local",
        "threads": 4,
    }
    assert (found.source, found.trouble) == ("daemon", None)


def test_a_place_may_be_near_no_memory() -> None:
    assert (
        ProcessPlan({**LINES, "AFFINITYD_MEMORY_NODES": ""}, "daemon").memory_nodes == frozenset()
    )


BROKEN: Sequence[Mapping[str, str | None]] = [
    *({name: None} for name in LINES),
    {"AFFINITYD_CPULIST": ""},
    {"AFFINITYD_CPULIST": "8"},
    {"AFFINITYD_CPULIST": "4-7,8"},
    {"AFFINITYD_CPULIST": "four"},
    {"AFFINITYD_ALLOWED": ""},
    {"AFFINITYD_LOCALITY": "near"},
    {"AFFINITYD_THREADS": ""},
    {"AFFINITYD_THREADS": "0"},
    {"AFFINITYD_THREADS": "-1"},
    {"AFFINITYD_THREADS": "9" * 5000},
    {"AFFINITYD_MEMORY_NODES": "x\n"},
]


@pytest.mark.parametrize("changed", BROKEN, ids=[str(it)[:40] for it in BROKEN])
def test_what_is_no_plan_is_a_value_error_of_one_line(changed: Mapping[str, str | None]) -> None:
    with pytest.raises(ValueError, match=r"^.+$") as caught:
        ProcessPlan(lines(changed), "daemon")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


# Who says it.


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"mode": "node", "visible": "5"},
        {"mode": "exclusive", "rank": "3"},
        {"mode": "unique_interleaved", "ranks": "16", "rank": "9", "balanced": "false"},
        {"job": "2,3,4", "visible": "3,4", "share": "requested"},
        {"mode": "single_unique", "gpus": "1", "share": "node", "cpuset": "32-63,160-191"},
        {"mode": "socket", "gpus": "0", "cpuset": "0-3,64-67"},
        {"mode": "core_complex", "gpus": "6,7", "multithreading": "single_logical"},
    ],
)
def test_the_place_is_the_same_when_the_daemon_has_stopped(
    daemon: Daemon, stopped: Daemon, question: Mapping[str, str]
) -> None:
    of_daemon, of_file = find(question, daemon.socket), find(question, stopped.socket)
    assert facts(of_daemon) == facts(of_file)
    assert (of_daemon.source, of_daemon.trouble) == ("daemon", None)
    assert (of_file.source, of_file.trouble) == ("node.json", None)
    assert not of_daemon.cpus & parse_list(RESERVED)


def test_without_what_a_daemon_published_the_settings_lead_to_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AFFINITYD_MACHINE", "mi250x")
    monkeypatch.setenv("AFFINITYD_RESERVED_CPUS", "48-55")
    found = find({"gpus": "0", "mode": "node"}, tmp_path / "affinityd.sock")
    assert (found.source, found.trouble) == ("sysfs", None)
    assert found.cpus == parse_list("56-63,112-127")


def test_the_second_daemon_is_asked_where_the_first_is_none(daemon: Daemon) -> None:
    found = find({"gpus": "0"}, NOWHERE, daemon.socket)
    assert (found.source, found.trouble) == ("daemon", None)


def test_the_second_daemon_is_asked_where_the_first_is_in_trouble(
    daemon: Daemon, tmp_path: Path
) -> None:
    with answering(tmp_path / "s", "", "500 Oh") as bad:
        found = find({"gpus": "0"}, bad, daemon.socket)
    assert (found.source, found.trouble) == ("daemon", None)


def test_the_first_daemon_that_answers_is_believed(daemon: Daemon, tmp_path: Path) -> None:
    with answering(tmp_path / "s", "", "500 Oh") as bad:
        assert find({"gpus": "0"}, daemon.socket, bad).source == "daemon"


# Trouble.


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ("", "500 Oh", "answered 500: ''"),
        ("no topology", "503 Oh", "answered 503: 'no topology'"),
        ("nonsense", "200 OK", "answered a plan without 'AFFINITYD_CPULIST'"),
        ("AFFINITYD_CPULIST=x\nAFFINITYD_ALLOWED=0\n", "200 OK", "answered 'x' is not a CPU"),
        (
            "Malformed request: unknown parameter 'task_cpus'; did you mean job_cpus?",
            "422 Unprocessable Content",
            "is of another release: unknown parameter 'task_cpus'",
        ),
        (
            "".join(f"{name}={text}\n" for name, text in LINES.items()),
            "200 OK",
            "answered CPUs that were not asked for: 6-7",
        ),
    ],
)
def test_a_daemon_in_trouble_is_told_beside_the_place_that_was_planned_without_it(
    stopped: Daemon, tmp_path: Path, body: str, status: str, told: str
) -> None:
    shutil.copy(stopped.socket.with_name("node.json"), tmp_path)
    with answering(tmp_path / "affinityd.sock", body, status) as path:
        found = find({"cpuset": "0-5", "gpus": "0"}, path)
    assert found.source == "node.json"
    assert found.trouble is not None
    assert found.trouble.startswith(f"the daemon at {path} {told}")
    assert found.cpus <= parse_list("0-5")


def test_a_daemon_that_hangs_leaves_time_to_plan_without_it(
    stopped: Daemon, tmp_path: Path
) -> None:
    shutil.copy(stopped.socket.with_name("node.json"), tmp_path)
    start = time.monotonic()
    with answering(tmp_path / "affinityd.sock", None) as path:
        found = find({"gpus": "0"}, path, timeout=8.0, bounded=True)
    assert time.monotonic() - start < PATIENCE
    assert (found.source, found.trouble) == (
        "node.json",
        f"the daemon at {path} did not answer in time",
    )


def test_the_daemon_that_hung_is_named_and_not_one_that_nobody_had_time_to_ask(
    stopped: Daemon, tmp_path: Path
) -> None:
    with answering(tmp_path / "s", None) as path:
        found = find({"gpus": "0"}, path, stopped.socket, timeout=0.5)
    assert found.trouble == f"the daemon at {path} did not answer in time"


def test_who_is_not_trusted_is_passed_over_and_named(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AFFINITYD_MACHINE", "dgx-a100")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with answering(tmp_path / "open/s", "AFFINITYD_CPULIST=0") as path:
        assert find({"gpus": "0"}, path, daemon.socket).source == "daemon"
        alone = find({"gpus": "0"}, path)
        with pytest.raises(NoSuchGpuError) as refused:
            find({"gpus": "9"}, path)
    trouble = f"{path} is not trusted: others may write to {tmp_path}/open;"
    assert alone.source == "sysfs"
    assert str(alone.trouble).startswith(trouble)
    assert str(refused.value).startswith("no GPU 9; ")
    assert trouble in str(refused.value)


def test_without_a_daemon_it_is_said_where_one_was_looked_for() -> None:
    with pytest.raises(NoDaemonError, match=r"^no daemon at /nonexistent/1 or /nonexistent/2$"):
        find_plan.ask_daemons([{}], ["/nonexistent/1", "/nonexistent/2"], time.monotonic() + 1)


def test_trouble_counts_more_than_nobody(tmp_path: Path) -> None:
    with answering(tmp_path / "s", "", "500 Oh") as path:
        for sockets in ([path, NOWHERE], [NOWHERE, path]):
            with pytest.raises(DaemonError, match="500") as caught:
                find_plan.ask_daemons([{}], sockets, time.monotonic() + 1)
            assert not isinstance(caught.value, NoDaemonError)


def test_what_takes_too_long_is_cut_where_it_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_plan, "find_node", lambda _sockets: time.sleep(1000))
    start = time.monotonic()
    with pytest.raises(ApplyError, match="took too long"):
        find({"gpus": "0"}, tmp_path / "affinityd.sock", timeout=0.3, bounded=True)
    assert 0.25 < time.monotonic() - start < PATIENCE


# Refusals.


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Run a daemon of a machine with fewer GPUs, which published nothing."""
    with running(tmp_path_factory.mktemp("small"), "--machine", "gh200x4") as small:
        small.socket.with_name("node.json").unlink()
        yield small


@pytest.mark.parametrize(
    ("question", "error"),
    [
        ({"gpus": "7"}, NoSuchGpuError),
        ({"gpus": "2", "cpuset": "16-31", "strict": "true"}, UnsatisfiableError),
        ({"rank": "5"}, InvalidRequestError),
    ],
)
def test_a_refusal_holds_though_it_could_be_planned_without_the_daemon(
    small: Daemon,
    monkeypatch: pytest.MonkeyPatch,
    question: Mapping[str, str],
    error: type[AffinityError],
) -> None:
    monkeypatch.setenv("AFFINITYD_MACHINE", "dgx-a100")
    assert find(question, NOWHERE).source == "sysfs"
    with pytest.raises(error):
        find(question, small.socket)


def test_the_next_question_is_asked_where_it_may_know_better(daemon: Daemon) -> None:
    asked = [{"cpuset": ALL, "rank": "9"}, {"cpuset": ALL, "gpus": "1", "mode": "node"}]
    for sockets in ([str(daemon.socket)], [str(daemon.socket.with_name("other.sock"))]):
        found = find_plan.find_plan(asked, sockets, time.monotonic(), 10, bounded=False)
        assert found.cpus == parse_list("48-63,176-191") - parse_list(RESERVED)
