"""The check of the daemon's socket: real sockets, a real daemon, other users."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from affinityd import config
from affinityd.cli.commands.doctor import gather
from affinityd.config.settings import Settings
from affinityd.discovery import open_tree
from affinityd.doctor.daemon_probe import probe
from affinityd.doctor.facts import NodeFacts
from affinityd.linux.cgroup import cpuset_of
from affinityd.topology import node_file
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
    """Make a folder that every user reaches, as /run/affinityd is one."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # pytest's are shut
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
    """Let a folder have this mode for a while."""
    path.chmod(bits)
    try:
        yield
    finally:
        path.chmod(0o755)


def here(path: Path) -> NodeFacts:
    """Return the facts of this machine, whose daemon's socket is at a path."""
    return gather(Settings(socket=os.fspath(path)))


def seen(path: Path, timeout: float = PATIENCE) -> NodeFacts:
    """Return the facts of the node that is published beside a socket."""
    return NodeFacts(TWO, open_tree("/"), daemon=probe(os.fspath(path), timeout))


def test_a_daemon_of_this_machine_passes(daemon: Daemon) -> None:
    facts = here(daemon.socket)
    process = f"(process {daemon.process.pid})"
    check("daemon", facts, f"ok: {daemon.socket} answers {process}")
    assert facts.daemon is not None
    assert facts.daemon.cpuset == cpuset_of(daemon.process.pid)


def test_without_a_named_socket_root_s_daemon_is_checked(
    folder: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    none, own, left = (folder / name / "affinityd.sock" for name in ("none", "own", "left"))
    left.parent.mkdir()
    left.with_name("node.json").touch()  # jobs of this node reckon with a daemon
    found = f"ok: {daemon.socket} answers"
    for roots, users, expected in (
        (none, own, f"n/a: no daemon listens at {none} or {own}, and none is needed"),
        (daemon.socket, own, found),
        (none, daemon.socket, found),
        (left, own, f"fail: no daemon at {left} → {MISSING}"),
        (none, none, f"fail: no daemon at {none} → {MISSING}"),  # to root
    ):
        monkeypatch.setattr(config, "default_socket", lambda path=users: os.fspath(path))
        monkeypatch.setattr(config, "SYSTEM_SOCKET", os.fspath(roots))
        check("daemon", here(users), expected)


def test_a_system_folder_that_others_may_write_to_is_a_warning(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = daemon.socket.parent
    with mode(folder, 0o777):
        check("daemon", here(daemon.socket), "ok: answers")
        monkeypatch.setattr(config, "SYSTEM_SOCKET", os.fspath(daemon.socket))
        check("daemon", here(daemon.socket), f"warn: {folder}, which is 0777 → chmod 755 {folder}")


def test_a_user_s_runtime_folder_may_bar_other_users(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = daemon.socket.parent
    with mode(folder, 0o700):
        assert probe(os.fspath(daemon.socket)).closed == (f"{folder} is 0700",)
        assert probe(os.fspath(folder / "none.sock")).closed == ()
        monkeypatch.setenv("XDG_RUNTIME_DIR", os.fspath(folder))
        check("daemon", here(daemon.socket), "ok: answers")


@pytest.mark.parametrize(
    ("name", "why"),
    [("none", "No such file or directory"), ("x" * 120, "AF_UNIX path too long"), ("x" * 6000, "")],
)
def test_without_a_daemon_the_remedy_is_to_start_one(folder: Path, name: str, why: str) -> None:
    check("daemon", here(folder / name), f"fail: {folder / name}: {why} → {MISSING}")


END_IT = "fail: {} → end the process that listens"


@pytest.mark.parametrize(
    ("behave", "timeout", "expected"),
    [
        (hanging, 0.2, "fail: ready daemon: no answer within 0.2 s → systemctl restart"),
        (answering(b"220 mail\r\n"), PATIENCE, END_IT.format("220 mail")),
        (answering(http("404 No", b"")), PATIENCE, END_IT.format("it answered 404")),
        (answering(http("503 No", b"")), PATIENCE, "fail: not read the machine yet → journalctl"),
    ],
    ids=["silent", "a mail server", "a web server", "not ready"],
)
def test_a_server_that_is_no_ready_daemon_fails(
    folder: Path, behave: Behaviour, timeout: float, expected: str
) -> None:
    node_file.write(folder / "node.json", Node(TWO))
    with serving(folder / "s", behave) as path:
        path.chmod(0o666)
        facts = seen(path, timeout)
    assert facts.own_daemon().pid == os.getpid()
    check("daemon", facts, expected)


def test_a_daemon_with_a_full_queue_is_seen_as_listening(folder: Path) -> None:
    path = os.fspath(folder / "s")
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen(0)
        stack.enter_context(socket.socket(socket.AF_UNIX)).connect(path)
        daemon = probe(path, timeout=0.1)
    assert (daemon.listens, daemon.status) == (True, None)
    assert daemon.error == "it accepts no more connections: its queue is full"


@pytest.mark.parametrize(("shut", "bits"), [("", 0o750), ("s", 0o664)])
def test_a_socket_that_not_every_user_reaches_is_a_warning(
    folder: Path, shut: str, bits: int
) -> None:
    node_file.write(folder / "node.json", Node(TWO))
    with serving(folder / "s", READY) as path:
        path.chmod(0o666)
        (folder / shut).chmod(bits)
        facts = seen(path)
    closed = f"{folder / shut} is {bits:04o}"
    check("daemon", facts, f"warn: not all users' jobs reach {path}: {closed} → chmod 755")


def test_a_malformed_node_json_is_a_warning(folder: Path) -> None:
    (folder / "node.json").write_text("{}")
    with serving(folder / "s", READY) as path:
        path.chmod(0o666)
        check("daemon", seen(path), "warn: node.json has no 'version' → let the daemon write")


AS_NOBODY = """
# Python itself may be where another user reads nothing: all that is needed comes first.
import os, affinityd.cli.commands.doctor, affinityd.slurm.check
from affinityd.cli import entry
os.setgroups([]); os.setgid(65534); os.setuid(65534)
entry()
"""


@needs_root
def test_a_socket_that_refuses_this_user_is_not_reported_as_missing(
    folder: Path,
) -> None:
    """Others' checks are made all the same: what is in the way is a finding, and no error."""
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
