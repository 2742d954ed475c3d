"""Another process keeps a daemon's queue of connections full; curl does not wait for room."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.faults.checker import Truth, answered_more, asking
from tests.support.daemons import PATIENCE, eventually, running
from tests.support.machines.facts import machine
from tests.support.paths import REPOSITORY
from tests.support.servers import http

MACHINE = "dgx-a100"
TRIES = 12
REFUSAL = "No such GPU: none"

#: The real one; its third try waits until it is told that there is room.
CURL = """#!/bin/sh
echo >>{folder}/tries
if [ "$(grep -c '' {folder}/tries)" = 3 ]; then
    : >{folder}/third
    until [ -e {folder}/room ]; do sleep 0.01; done
fi
exec {curl} "$@"
"""

#: Connects and closes without a pause.
CHURN = """
import socket, sys
while True:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
"""


@dataclass(frozen=True)
class Script:
    """A copy of a script in a folder, whose curl is there, too."""

    folder: Path
    command: tuple[str, ...]
    env: dict[str, str]
    silence: str  #: what it says where nothing is answered

    def run(self) -> tuple[str, int]:
        """Return what it says, and how often it has asked."""
        done = subprocess.run(
            self.command,
            env={**self.env, "AFFINITYD_DAEMON_UID": f"{os.geteuid()}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        tries = self.folder / "tries"
        number = tries.read_text().count("\n") if tries.exists() else 0
        tries.unlink(missing_ok=True)
        return done.stdout, number


def put(folder: Path, script: str, **places: str) -> str:
    """Copy a script and pinning.sh into a folder; it looks for things in other places."""
    path = folder / Path(script).name
    text = (REPOSITORY / script).read_text()
    for name, place in places.items():
        before = next(word for word in text.split() if word.startswith(f"{name}=/"))
        text = text.replace(before, f"{name}={place}", 1)
    path.write_text(text)
    path.chmod(0o755)
    shutil.copy(REPOSITORY / "slurm/pinning.sh", folder)
    return str(path)


def task_prolog(folder: Path) -> Script:
    path = put(folder, "slurm/task_prolog.sh", curl=f"{folder}/curl", settings="/nonexistent")
    task = {"SLURM_TASK_PID": f"{os.getpid()}", "SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "0"}
    env = {**task, "AFFINITYD_SOCKET": f"{folder}/s"}
    return Script(folder, (path,), env, f"export AFFINITYD_UNPINNED=no plan from {folder}/s\n")


def prolog(folder: Path) -> Script:
    settings = f"AFFINITYD_SOCKET={folder}/s\nAFFINITYD_DAEMON_UID={os.geteuid()}\n"
    (folder / "settings").write_text(settings)
    places = {"run": f"{folder}/run", "settings": f"{folder}/settings"}
    path = put(folder, "slurm/prolog.sh", PATH=f"{folder}:/usr/bin:/bin", **places)
    env = {"SLURM_JOB_ID": "1", "SLURM_JOB_GPUS": "0"}
    return Script(folder, (path,), env, f"affinityd: no daemon is ready at {folder}/s: ")


def run(folder: Path) -> Script:
    (folder / "dev").mkdir()
    (folder / "dev/nvidia0").touch()
    path = put(folder, "affinityd/kubernetes/files/run.sh", dev=f"{folder}/dev")
    env = {"PATH": f"{folder}:/usr/bin:/bin", "AFFINITYD_SOCKET": f"{folder}/s"}
    silence = f"affinityd run: no answer from {folder}/s, and in {folder}/gpu is not a GPU"
    return Script(folder, (path, "true"), env, silence)


@pytest.fixture(params=[task_prolog, prolog, run], ids=lambda made: made.__name__)
def script(request: pytest.FixtureRequest, tmp_path: Path) -> Script:
    curl = tmp_path / "curl"
    curl.write_text(CURL.format(folder=tmp_path, curl=shutil.which("curl")))
    curl.chmod(0o755)
    made: Script = request.param(tmp_path)
    return made


@contextmanager
def full(path: Path) -> Iterator[socket.socket]:
    """Listen at a path, with no room in the queue: one waits there, which is all that it takes."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(os.fspath(path))
        listener.listen(0)
        waiting.connect(os.fspath(path))
        yield listener


def answer(listener: socket.socket) -> None:
    """Refuse a plan, but be ready."""
    connection, _ = listener.accept()
    with connection:
        ready = b"/readyz " in connection.recv(65536)
        connection.sendall(
            http("200 OK", b"ready\n") if ready else http("404 Not Found", f"{REFUSAL}\n".encode())
        )


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join()


def test_a_client_that_finds_room_is_answered_while_another_connects_without_a_pause(
    tmp_path: Path,
) -> None:
    with (
        running(tmp_path, "--machine", MACHINE) as daemon,
        asking(daemon.socket, Truth(machine(MACHINE))) as asked,
    ):
        churn = subprocess.Popen([sys.executable, "-c", CHURN, str(daemon.socket)])
        try:
            assert all(answered_more(asked) for _ in range(3))
            assert churn.poll() is None
        finally:
            churn.kill()
            churn.wait()
    assert asked.cut == 0
    assert asked.refused.keys() <= {"BlockingIOError"}  # there was no room for it, for the moment


def test_a_script_asks_again_where_there_was_no_room_for_it_and_else_once(script: Script) -> None:
    def serve() -> None:
        eventually((script.folder / "third").exists, "it tries a third time")
        listener.accept()[0].close()
        (script.folder / "room").touch()
        answer(listener)
        answer(listener)

    with full(script.folder / "s") as listener, meanwhile(serve):
        for tries in (3, 1):
            said, number = script.run()
            assert script.silence not in said
            assert REFUSAL in said or said == ""
            assert number == tries


def test_it_gives_up_where_there_never_is_any_and_asks_no_socket_that_is_not_trusted(
    script: Script,
) -> None:
    (script.folder / "room").touch()
    with full(script.folder / "s"):
        said, tries = script.run()
        assert script.silence in said
        assert tries == TRIES
        script.folder.chmod(0o777)
        assert script.run()[1] == 0


@pytest.mark.parametrize("script", [run], indirect=True)
def test_a_tcp_address_is_asked_once(script: Script) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    script.env["AFFINITYD_URL"] = url
    said, tries = script.run()
    assert f"no answer from {url}" in said
    assert tries == 1
