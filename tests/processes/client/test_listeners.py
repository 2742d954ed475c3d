"""Whom a client believes that listens: real users' processes, in and out of a user namespace."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from affinityd.client import http as client
from affinityd.errors import NoDaemonError, UntrustedError
from tests.processes.client.test_trust import (
    ANOTHER,
    INSIDE,
    SOMEBODY,
    as_root,
    folder,
    listener,
    no_settings,
    trust_alone,
)
from tests.support.servers import serving

__all__ = ["folder", "no_settings"]

#: Binds as who it was, listens as a user, and prints what it is sent.
LISTEN = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    os.chmod(sys.argv[1], 0o666)
    os.setuid(int(sys.argv[2]))
    listener.listen()
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            sent = connection.recv(65536)
            print(sent, flush=True)
            if sent:
                connection.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\n\\r\\nme")
"""


@contextmanager
def listening(path: Path, uid: int) -> Iterator[Callable[[], str]]:
    """Have a user listen on a socket that is ours; yield what returns the next that it is sent."""
    command = [sys.executable, "-I", "-S", "-c", LISTEN, str(path), str(uid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout
            assert child.stdout.readline() == "ready\n"
            yield child.stdout.readline
        finally:
            child.kill()


def ask(path: Path) -> str:
    return client.fetch(str(path), "/readyz", time.monotonic() + 60)


@as_root
def test_nothing_is_sent_to_a_user_s_process_unless_that_user_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "run/s"
    told = f"^the daemon at {path} is not trusted: uid {SOMEBODY} listens there, which is neither"
    with listening(path, SOMEBODY) as sent:
        with pytest.raises(UntrustedError, match=told):
            ask(path)
        assert sent() == "b''\n"
        trust_alone(monkeypatch, SOMEBODY)
        assert ask(path) == "me"


def test_a_daemon_that_is_trusted_is_not_asked_where_others_could_listen(folder: Path) -> None:
    sent: list[bytes] = []

    def behave(connection: socket.socket, _over: object) -> None:
        sent.append(connection.recv(65536))

    (folder / "run").chmod(0o777)
    with serving(folder / "run/s", behave) as path, pytest.raises(UntrustedError, match="go-w"):
        ask(path)
    assert sent == [b""]
    with pytest.raises(NoDaemonError):  # whose it is where nothing listens is no question
        ask(listener(folder / "run/left"))


ASK = """
import sys, time
from affinityd.client import http as client
try: print(client.fetch(sys.argv[1], "/readyz", time.monotonic() + 60))
except client.DaemonError as error: print(error)
"""


@as_root
def test_in_a_user_namespace_those_are_trusted_who_have_no_number_there(folder: Path) -> None:
    """The folders above are one's own there, as those of a container that a user made."""
    path = folder / "run/s"
    command = [*INSIDE, sys.executable, "-c", ASK]
    env = {"PYTHONPATH": os.pathsep.join(sys.path), "AFFINITYD_CONFIG": "/nonexistent"}

    def asked_inside() -> str:
        return subprocess.check_output([*command, str(path)], env=env, text=True).strip()

    with listening(path, ANOTHER):
        for part in (folder / "run", path):
            assert f"{part} belongs to uid {SOMEBODY}," in asked_inside()
            os.chown(part, ANOTHER, ANOTHER)
        assert asked_inside() == "me"
    path.unlink()
    with listening(path, 0):
        assert f"uid {SOMEBODY} listens" in asked_inside()
