"""Another process keeps a daemon's queue of connections full; curl does not wait for room."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.daemons import PATIENCE, eventually
from tests.support.paths import REPOSITORY
from tests.support.servers import http

SLURM = REPOSITORY / "slurm"
TRIES = 12

#: Runs the real curl, and counts its runs.
CURL = """#!/bin/sh
echo >>{folder}/tries
exec {curl} "$@"
"""

#: What the TaskProlog and a pod's `run` do.
ASK = '. "$1"; curl=$2/curl clean=; ask "$3" 9 ""; echo "${answer:-no answer}"'


def ask(folder: Path, address: str) -> tuple[str, int]:
    """Return the answer that the scripts of slurm/ and of pods get, and how often they asked."""
    command = ("sh", "-c", ASK, "sh", str(SLURM / "pinning.sh"), str(folder), address)
    answer = subprocess.check_output(command, text=True, timeout=PATIENCE)
    tries = folder / "tries"
    number = tries.read_text().count("\n")
    tries.unlink()
    return answer, number


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    curl = tmp_path / "curl"
    curl.write_text(CURL.format(folder=tmp_path, curl=shutil.which("curl")))
    curl.chmod(0o755)
    return tmp_path


@contextmanager
def full(path: Path) -> Iterator[socket.socket]:
    """Listen at a path with a queue of one connection, and fill that queue."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(os.fspath(path))
        listener.listen(0)
        waiting.connect(os.fspath(path))
        yield listener


def test_a_script_asks_again_if_the_queue_was_full(folder: Path) -> None:
    tries = folder / "tries"

    def serve() -> None:
        eventually(lambda: tries.exists() and len(tries.read_text()) > 1, "it tries again")
        listener.accept()[0].close()
        with listener.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(http("200 OK", b"ready\n"))

    with full(folder / "s") as listener, ThreadPoolExecutor(1) as server:
        serving = server.submit(serve)
        answer, number = ask(folder, f"{folder}/s")
        serving.result()
        assert answer == "ready\n"
        assert number > 1


def test_a_script_gives_up_if_the_queue_stays_full(folder: Path) -> None:
    with full(folder / "s"):
        assert ask(folder, f"{folder}/s") == ("no answer\n", TRIES)
