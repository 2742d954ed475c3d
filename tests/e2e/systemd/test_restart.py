"""What the daemon does not survive: a real systemd starts it again, and clients plan meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.e2e.faults.checker import Truth, answered_more, asking
from tests.e2e.faults.elsewhere import plans, says
from tests.e2e.faults.ranks import environment, started_more, starting
from tests.e2e.systemd.unit_manager import needs_manager, started
from tests.support.daemons import Daemon, eventually, is_ready
from tests.support.tiny import tiny, tiny_tree

pytestmark = needs_manager

#: As in the unit, which the tests' own manager runs without otherwise.
RESTARTS = {"restarts.conf": "[Service]\nRestart=always\nEnvironment=AFFINITYD_LISTEN=none\n"}

SECONDS = 60.0  #: that a busy machine takes to start it again: 1 s of RestartSec=, and Python's


@contextmanager
def supervised(folder: Path) -> Iterator[Daemon]:
    """Run the unit on a machine of two CPUs."""
    command = f"-m affinityd serve --root {tiny_tree(folder / 'machine')}"
    with started(folder, command, RESTARTS) as daemon:
        eventually(lambda: is_ready(daemon), "the daemon is ready")
        yield daemon


def clients(folder: Path, daemon: Daemon) -> dict[str, str]:
    """Return the environment of ranks; without node.json they read the machine themselves."""
    return {**environment(daemon.socket), "AFFINITYD_ROOT": str(folder / "machine")}


def main_pid(daemon: Daemon) -> int | None:
    """Return the pid of the daemon, its manager's only child that serves."""
    manager = daemon.process.pid
    for pid in Path(f"/proc/{manager}/task/{manager}/children").read_text().split():
        with suppress(OSError):
            if b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    return None


FAULTS: dict[str, Callable[[Daemon], object]] = {
    "the socket's file is deleted": lambda it: it.socket.unlink(),
    "its folder is deleted": lambda it: shutil.rmtree(it.socket.parent),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_it_is_started_again_within_seconds_and_every_rank_is_where_it_belongs(
    tmp_path: Path, fault: Callable[[Daemon], object]
) -> None:
    with (
        supervised(tmp_path) as daemon,
        asking(daemon.socket, Truth(tiny()), clients=1) as asked,
        starting(clients(tmp_path, daemon), at_once=1) as ranks,
    ):
        assert answered_more(asked)
        assert started_more(ranks)
        fault(daemon)
        began = time.monotonic()
        eventually(lambda: not plans(daemon), "it ends")
        eventually(lambda: plans(daemon), "it is started again")
        assert time.monotonic() - began < SECONDS
        assert answered_more(asked)
        assert started_more(ranks)
        (line,) = says(daemon, "critical")
        assert line.startswith("critical: /run/affinityd/affinityd.sock is gone")


def test_however_often_it_ends_it_is_started_again(tmp_path: Path) -> None:
    """Else systemd gives up a unit that has started five times within ten seconds."""
    killed: set[int] = set()
    with supervised(tmp_path) as daemon:
        while len(killed) < 7:
            eventually(lambda: main_pid(daemon) not in {None, *killed}, "it runs")
            killed.add(pid := main_pid(daemon) or 0)
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: plans(daemon), "it is started again")


def test_a_wrong_setting_is_not_tried_again(tmp_path: Path) -> None:
    wrong = {**RESTARTS, "wrong.conf": "[Service]\nEnvironment=AFFINITYD_LISTEN=9465\n"}
    with started(tmp_path, "-m affinityd serve", wrong) as daemon:
        eventually(lambda: daemon.lines, "it has ended")
        time.sleep(3)
        (line,) = daemon.lines
        assert "'9465' is not HOST:PORT" in line
