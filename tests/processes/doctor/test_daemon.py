"""doctor's check of a daemon: the daemon's socket, its answers, and its node.json."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from affinityd import config
from affinityd.cli.commands.doctor import gather
from affinityd.config.settings import Settings
from affinityd.discovery import open_tree
from affinityd.doctor.checks.daemon import probe
from affinityd.doctor.facts import NodeFacts
from affinityd.topology.document import write_node
from affinityd.topology.model import Node
from tests.support.daemons import PATIENCE, Daemon, running
from tests.support.doctor_facts import TWO, check
from tests.support.paths import REPOSITORY
from tests.support.servers import Behaviour, answering, hanging, http, serving

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="to be another user takes root")

READY = answering(http("200 OK", b""))
MISSING = "systemctl enable --now affinityd"


@contextmanager
def public_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # pytest's folders are closed
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def folder() -> Iterator[Path]:
    with public_folder() as path:
        yield path


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with public_folder() as path, running(path) as daemon:
        yield daemon


@contextmanager
def mode(path: Path, bits: int) -> Iterator[None]:
    path.chmod(bits)
    try:
        yield
    finally:
        path.chmod(0o755)


def here(path: Path) -> NodeFacts:
    return gather(Settings(socket=os.fspath(path)))


def seen(path: Path, timeout: float = PATIENCE) -> NodeFacts:
    return NodeFacts(TWO, open_tree("/"), daemon=probe(os.fspath(path), timeout))


def test_a_daemon_of_this_machine_passes(daemon: Daemon) -> None:
    facts = here(daemon.socket)
    process = f"(process {daemon.process.pid})"
    check("daemon", facts, f"ok: {daemon.socket} answers {process}")


def test_without_a_named_socket_root_s_daemon_is_checked(
    folder: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    none, own, left = (folder / name / "affinityd.sock" for name in ("none", "own", "left"))
    left.parent.mkdir()
    left.with_name("node.json").touch()  # jobs of this node expect a daemon
    found = f"ok: {daemon.socket} answers"
    for roots, users, expected in (
        (none, own, f"n/a: no daemon listens at {none} or {own}, and none is needed"),
        (daemon.socket, own, found),
        (none, daemon.socket, found),
        (left, own, f"fail: no ready daemon at {left} → {MISSING}"),
        (none, none, f"n/a: no daemon listens at {none}, and none is needed"),  # for root
    ):
        monkeypatch.setattr(config, "default_socket", lambda path=users: os.fspath(path))
        monkeypatch.setattr(config, "SYSTEM_SOCKET", os.fspath(roots))
        check("daemon", here(users), expected)


def test_a_system_folder_writable_by_others_is_a_warning(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = daemon.socket.parent
    with mode(folder, 0o777):
        check("daemon", here(daemon.socket), "ok: answers")
        monkeypatch.setattr(config, "SYSTEM_SOCKET", os.fspath(daemon.socket))
        check("daemon", here(daemon.socket), f"warn: {folder} is 0777 → chmod 755")


@pytest.mark.parametrize(
    ("name", "why"),
    [("none", "No such file or directory"), ("x" * 120, "AF_UNIX path too long"), ("x" * 6000, "")],
)
def test_without_a_daemon_the_remedy_is_to_start_one(folder: Path, name: str, why: str) -> None:
    check("daemon", here(folder / name), f"fail: {folder / name}: {why} → {MISSING}")


@pytest.mark.parametrize(
    ("behave", "timeout", "expected"),
    [
        (hanging, 0.2, f"fail: no answer within 0.2 s → {MISSING}"),
        (answering(b"220 mail\r\n"), PATIENCE, f"fail: 220 mail → {MISSING}"),
        (answering(http("404 No", b"")), PATIENCE, f"fail: it answered 404 → {MISSING}"),
        (answering(http("503 No", b"")), PATIENCE, f"fail: it answered 503 → {MISSING}"),
    ],
    ids=["silent", "a mail server", "a web server", "not ready"],
)
def test_a_server_that_is_not_a_ready_daemon_fails(
    folder: Path, behave: Behaviour, timeout: float, expected: str
) -> None:
    write_node(folder / "node.json", Node(TWO))
    with serving(folder / "s", behave) as path:
        path.chmod(0o666)
        facts = seen(path, timeout)
    assert facts.daemon is not None
    assert facts.daemon.pid == os.getpid()
    check("daemon", facts, expected)


@pytest.mark.parametrize(("shut", "bits"), [("", 0o750), ("s", 0o664)])
def test_a_socket_closed_to_some_users_is_a_warning(folder: Path, shut: str, bits: int) -> None:
    write_node(folder / "node.json", Node(TWO))
    with serving(folder / "s", READY) as path:
        path.chmod(0o666)
        (folder / shut).chmod(bits)
        check(
            "daemon",
            seen(path),
            f"warn: replace its socket: {folder / shut} is {bits:04o} → chmod 755",
        )


def test_a_malformed_node_json_is_a_warning(folder: Path) -> None:
    (folder / "node.json").write_text("{}")
    with serving(folder / "s", READY) as path:
        path.chmod(0o666)
        check("daemon", seen(path), "warn: node.json has no 'version' → let the daemon write")


AS_NOBODY = """
# Another user may not be allowed to read Python's files: all imports come before this.
import os, affinityd.cli.commands.doctor, affinityd.slurm.cores
from affinityd.cli import entry
os.setgroups([]); os.setgid(65534); os.setuid(65534)
entry()
"""


@needs_root
def test_a_socket_that_refuses_this_user_is_not_reported_as_missing(folder: Path) -> None:
    with serving(folder / "s", READY) as path:
        folder.chmod(0o700)
        words = [sys.executable, "-c", AS_NOBODY, "doctor", "daemon", "cgroup", "--socket"]
        environ = {**os.environ, "PYTHONPATH": os.fspath(REPOSITORY)}
        done = subprocess.run(
            [*words, path], env=environ, capture_output=True, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "")
    refused = f"^daemon +fail +this user may not connect to {path}: Permission denied"
    assert re.search(refused, done.stdout, re.MULTILINE)
    assert re.search("^cgroup ", done.stdout, re.MULTILINE)
    assert f"{folder} is 0700" in done.stdout
    assert "no daemon" not in done.stdout
    assert "systemctl" not in done.stdout
