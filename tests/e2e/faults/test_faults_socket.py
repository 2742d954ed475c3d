"""The socket's file is deleted, its folder too, or another's is in its place: the daemon ends.

What starts it again is systemd, in tests/e2e/systemd/test_restart.py.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.faults.checker import asking
from tests.support.daemons import (
    PATIENCE,
    Daemon,
    UnixConnection,
    eventually,
    is_ready,
    running,
    spawn,
)
from tests.support.machines.facts import machine
from tests.support.servers import hanging, serving

MACHINE = "dgx-a100"


def replaced(path: Path) -> None:
    path.unlink()
    path.touch()


@pytest.mark.parametrize("fault", [replaced, lambda path: shutil.rmtree(path.parent)])
def test_a_daemon_that_no_client_reaches_answers_those_it_has_and_ends_with_one_line(
    tmp_path: Path, fault: Callable[[Path], object]
) -> None:
    path = tmp_path / "run/affinityd.sock"
    env = {"AFFINITYD_SOCKET": str(path)}
    with running(tmp_path, "--machine", MACHINE, env=env) as daemon:
        with asking(path, machine(MACHINE)) as asked:
            asked.more()
            connection = UnixConnection(path)
            connection.connect()
            fault(path)
            connection.request("GET", "/plan?gpus=0&format=cpulist")
            assert connection.getresponse().status == 200
            connection.close()
            assert daemon.process.wait(PATIENCE) == 1
        assert asked.cut == 0
        gone = f"{path} is gone, or another process's: the daemon exits, to be restarted"
        assert daemon.says("critical") == [f"critical: {gone}"]
        assert daemon.complaints == []


@pytest.mark.parametrize(("is_ended", "status"), [(True, 0), (False, 1)])
def test_it_leaves_another_daemons_socket_alone(
    tmp_path: Path, is_ended: bool, status: int
) -> None:
    """As of a daemon of a later release that is started before this one ends."""
    with running(tmp_path, "--machine", MACHINE) as daemon:
        daemon.socket.unlink()
        with serving(daemon.socket, hanging):
            if is_ended:
                daemon.signal(signal.SIGTERM)
            assert daemon.process.wait(PATIENCE) == status
            assert daemon.socket.exists()


def test_of_daemons_that_start_at_once_where_one_was_killed_one_stays(tmp_path: Path) -> None:
    def living(daemons: list[Daemon]) -> list[Daemon]:
        return [daemon for daemon in daemons if daemon.process.poll() is None]

    with running(tmp_path, "--machine", MACHINE) as killed:
        killed.signal(signal.SIGKILL)
        killed.process.wait(PATIENCE)
        assert killed.socket.exists()
    daemons = [spawn(tmp_path, "--machine", MACHINE) for _ in range(4)]
    try:
        eventually(lambda: len(living(daemons)) == 1, "one stays")
        (one,) = living(daemons)
        eventually(lambda: is_ready(one), "and answers")
    finally:
        statuses = [daemon.process.poll() for daemon in daemons]
        for daemon in living(daemons):
            daemon.process.kill()
            daemon.process.wait()
    assert sorted(statuses, key=str) == [1, 1, 1, None]
