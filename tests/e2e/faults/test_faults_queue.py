"""Another process keeps a daemon's queue of connections full; curl does not wait for room."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.faults.checker import asking
from tests.support.daemons import PATIENCE, eventually, running
from tests.support.machines.facts import machine
from tests.support.paths import REPOSITORY
from tests.support.servers import http

MACHINE = "dgx-a100"
SLURM = REPOSITORY / "slurm"
TRIES = 12

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

#: What the TaskProlog and a pod's `run` do.
ASK = '. "$1"; curl=$2/curl clean=; ask "$3" 9 ""; echo "${answer:-no answer}"'


@dataclass(frozen=True)
class Script:
    """Something that asks a socket by the curl of a folder."""

    folder: Path
    command: tuple[str, ...]
    silence: str  #: what it says where nothing is answered

    def run(self) -> tuple[str, int]:
        """Return what it says, and how often it has asked."""
        done = subprocess.run(
            self.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        tries = self.folder / "tries"
        number = tries.read_text().count("\n")
        tries.unlink()
        return done.stdout, number


#: Folder, address → what asks there.
Make = Callable[[Path, str], Script]


def ask(folder: Path, address: str) -> Script:
    words = (str(SLURM / "pinning.sh"), str(folder), address)
    return Script(folder, ("sh", "-c", ASK, "sh", *words), "no answer")


def prolog(folder: Path, address: str) -> Script:
    """Return a copy of the Prolog, which looks for all things in the folder."""
    (folder / "settings").write_text(f"AFFINITYD_SOCKET={address}\n")
    text = (SLURM / "prolog.sh").read_text()
    for name, was, now in (
        ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", f"{folder}:/usr/bin:/bin"),
        ("run", "/run/affinityd", f"{folder}/run"),
        ("settings", "/etc/affinityd.conf", f"{folder}/settings"),
    ):
        assert f"\n{name}={was}\n" in text
        text = text.replace(f"{name}={was}", f"{name}={now}")
    (folder / "prolog.sh").write_text(text)
    job = ("env", "SLURM_JOB_ID=1", "SLURM_JOB_GPUS=0")
    command = (*job, "sh", str(folder / "prolog.sh"))
    return Script(folder, command, f"affinityd: no daemon is ready at {address}: ")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder that has the curl."""
    curl = tmp_path / "curl"
    curl.write_text(CURL.format(folder=tmp_path, curl=shutil.which("curl")))
    curl.chmod(0o755)
    return tmp_path


@contextmanager
def full(path: Path) -> Iterator[socket.socket]:
    """Listen at a path, with no room in the queue: one waits there, which is all that it takes."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(os.fspath(path))
        listener.listen(0)
        waiting.connect(os.fspath(path))
        yield listener


def test_a_client_that_finds_room_is_answered_while_another_connects_without_a_pause(
    tmp_path: Path,
) -> None:
    with (
        running(tmp_path, "--machine", MACHINE) as daemon,
        asking(daemon.socket, machine(MACHINE)) as asked,
    ):
        churn = subprocess.Popen([sys.executable, "-c", CHURN, str(daemon.socket)])
        try:
            asked.more(150)
            assert churn.poll() is None
        finally:
            churn.kill()
            churn.wait()
    assert asked.cut == 0
    assert asked.refused.keys() <= {"BlockingIOError"}  # there was no room for it, for the moment


@pytest.mark.parametrize("make", [ask, prolog])
def test_a_script_asks_again_where_there_was_no_room_for_it_and_else_once(
    folder: Path, make: Make
) -> None:
    script = make(folder, f"{folder}/s")

    def serve() -> None:
        eventually((folder / "third").exists, "it tries a third time")
        listener.accept()[0].close()
        (folder / "room").touch()
        for _ in range(2):
            with listener.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(http("200 OK", b"ready\n"))

    with full(folder / "s") as listener, ThreadPoolExecutor(1) as server:
        serving = server.submit(serve)
        for tries in (3, 1):
            said, number = script.run()
            assert (script.silence in said, number) == (False, tries)
        serving.result()


@pytest.mark.parametrize("make", [ask, prolog])
def test_a_script_gives_up_where_there_never_is_any_room(folder: Path, make: Make) -> None:
    script = make(folder, f"{folder}/s")
    (folder / "room").touch()
    with full(folder / "s"):
        said, number = script.run()
        assert (script.silence in said, number) == (True, TRIES)


def test_a_tcp_address_is_asked_once(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert ask(folder, f"http://127.0.0.1:{port}").run() == ("no answer\n", 1)
