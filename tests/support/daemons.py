"""Starts a real daemon for tests, sends it requests over its socket, and stops it."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE = 90.0  #: seconds that anything here may take; a busy machine is slow

COMPLAINTS = "complaints"  #: the file of a daemon's stderr, beside its log


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:  # noqa: ANN401 - a document of any shape
        return json.loads(self.body)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(os.fspath(self._path))


@dataclass
class Daemon:
    process: subprocess.Popen[str]
    socket: Path
    log: Path  #: the daemon's stdout

    def get(self, target: str, method: str = "GET", **headers: str) -> Reply:
        connection = UnixConnection(self.socket)
        try:
            connection.request(method, target, headers=headers)
            response = connection.getresponse()
            return Reply(
                response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
            )
        finally:
            connection.close()

    def plan(self, query: str) -> Any:  # noqa: ANN401 - a document
        reply = self.get(f"/plan?{query}")
        assert reply.status == 200, reply.text
        return reply.json

    @property
    def node_file(self) -> Any:  # noqa: ANN401 - a document
        return json.loads(self.socket.with_name("node.json").read_text())

    @property
    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def says(self, words: str) -> list[str]:
        return [line for line in self.lines if words in line]

    @property
    def complaints(self) -> list[str]:
        return self.log.with_name(COMPLAINTS).read_text().splitlines()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


def spawn(
    folder: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    listen: str = "none",
    before: Sequence[str] = (),
) -> Daemon:
    """Start a daemon, by the command `before` if it is given; do not wait until it is ready."""
    log, complaints = folder / "log", folder / COMPLAINTS
    command = [*before, sys.executable, "-m", "affinityd", "serve", *arguments]
    environment = {key: value for key, value in os.environ.items() if "AFFINITYD" not in key}
    settings = {"AFFINITYD_SOCKET": f"{folder}/affinityd.sock", "AFFINITYD_LISTEN": listen}
    environment |= {**settings, **(env or {})}
    with log.open("a") as out, complaints.open("a") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, text=True, env=environment)
    return Daemon(process, Path(environment["AFFINITYD_SOCKET"]), log)


#: Sets the constants that arguments MODULE.NAME=NUMBER name, then runs affinityd's command line.
CHANGED = """
import importlib, runpy, sys
while "=" in sys.argv[1]:
    name, number = sys.argv.pop(1).split("=")
    module, _, constant = name.rpartition(".")
    setattr(importlib.import_module(f"affinityd.{module}"), constant, float(number))
del sys.argv[1:4]
runpy.run_module("affinityd", run_name="__main__")
"""


def with_constants(**numbers: float) -> tuple[str, ...]:
    """Return a command for `before` of `spawn` that runs the daemon with changed constants.

    The argument `a__b__SECONDS` changes the constant SECONDS of affinityd.a.b.
    """
    settings = (f"{name.replace('__', '.')}={number}" for name, number in numbers.items())
    return sys.executable, "-c", CHANGED, *settings


@contextmanager
def started(folder: Path, *arguments: str, **how: Any) -> Iterator[Daemon]:  # noqa: ANN401
    """Run a daemon until the end of the block; the arguments are those of `spawn`."""
    folder.mkdir(parents=True, exist_ok=True)
    daemon = spawn(folder, *arguments, **how)
    try:
        yield daemon
    finally:
        daemon.process.kill()
        daemon.process.wait()


@contextmanager
def running(folder: Path, *arguments: str, **how: Any) -> Iterator[Daemon]:  # noqa: ANN401
    with started(folder, *arguments, **how) as daemon:
        eventually(lambda: is_ready(daemon), "the daemon is ready")
        eventually(daemon.socket.with_name("node.json").exists, "the node file is there")
        yield daemon


def refused(folder: Path, *arguments: str, listen: str = "none") -> str:
    """Start a daemon that must exit at once; return its error line."""
    daemon = spawn(folder, *arguments, listen=listen)
    assert daemon.process.wait(PATIENCE) in {1, 2}
    assert daemon.lines == []
    (line,) = daemon.complaints
    return line


def is_ready(daemon: Daemon) -> bool:
    assert daemon.process.poll() is None, daemon.log.read_text()
    try:
        return daemon.get("/readyz").status == 200
    except OSError:
        return False


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds, for PATIENCE seconds at most."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"not within {PATIENCE} s: {what}"
        time.sleep(0.02)


def free_port() -> int:
    """Return a port that no process listens on, at any address of this machine."""
    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])


def open_files(process: int) -> Iterator[Path]:
    """Yield the paths of the files that a process has open."""
    with suppress(OSError):  # the process ended, or is another user's
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                yield descriptor.readlink()
