"""What the daemon does not survive: a real systemd starts it again.

What its clients do meanwhile is held by tests/e2e/faults.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.systemd.unit_manager import needs_manager, started
from tests.support.daemons import Daemon, eventually, is_ready
from tests.support.tiny import tiny_tree

pytestmark = needs_manager

#: As in the unit, which the tests' own manager runs without otherwise; but sooner.
RESTARTS = "[Service]\nRestart=always\nRestartSec=100ms\nEnvironment=AFFINITYD_LISTEN={}\n"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Run the unit on a machine of two CPUs."""
    folder = tmp_path_factory.mktemp("restart")
    command = f"-m affinityd serve --root {tiny_tree(folder / 'machine')}"
    with started(folder, command, {"restarts.conf": RESTARTS.format("none")}) as daemon:
        eventually(lambda: is_ready(daemon), "the daemon is ready")
        yield daemon


def main_pid(daemon: Daemon) -> int | None:
    """Return the pid of the daemon, its manager's only child that serves."""
    manager = daemon.process.pid
    for pid in Path(f"/proc/{manager}/task/{manager}/children").read_text().split():
        with suppress(OSError):
            if b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    return None


def test_it_is_started_again_when_its_socket_or_the_folder_goes(daemon: Daemon) -> None:
    for number, path in enumerate((daemon.socket, daemon.socket.parent), 1):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        eventually(lambda number=number: len(daemon.says("critical")) == number, "it ends")  # type: ignore[misc]
        eventually(lambda: is_ready(daemon), "it is started again")
    gone = "critical: /run/affinityd/affinityd.sock is gone"
    assert all(line.startswith(gone) for line in daemon.says("critical"))


def test_however_often_it_ends_it_is_started_again(daemon: Daemon) -> None:
    """Else systemd gives up a unit that has started five times within ten seconds."""
    killed: set[int] = set()
    while len(killed) < 7:
        eventually(lambda: main_pid(daemon) not in {None, *killed}, "it runs")
        killed.add(pid := main_pid(daemon) or 0)
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: is_ready(daemon), "it is started again")


def test_a_wrong_setting_is_not_tried_again(tmp_path: Path) -> None:
    wrong = {"wrong.conf": RESTARTS.format("9465")}
    with started(tmp_path, "-m affinityd serve", wrong) as daemon:
        eventually(lambda: daemon.lines, "it has ended")
        time.sleep(1)  # in which it would be started again
        (line,) = daemon.lines
        assert "'9465' is not HOST:PORT" in line
