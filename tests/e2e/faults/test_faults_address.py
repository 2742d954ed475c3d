"""Another process listens on the daemon's TCP address: any user may, who comes first."""

from __future__ import annotations

import http.client
import socket
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.faults.elsewhere import says
from tests.support.daemons import PATIENCE, eventually, running, spawn

MACHINE = ("--machine", "dgx-a100")
IN_USE = "Address already in use"


def taken() -> socket.socket:
    """Listen as a stranger does."""
    return socket.create_server(("127.0.0.1", 0))


def address(listener: socket.socket) -> str:
    host, port = listener.getsockname()
    return f"{host}:{port}"


def status(at: str, target: str) -> int | None:
    """Return what is answered over TCP; None: nothing."""
    with closing(http.client.HTTPConnection(at, timeout=PATIENCE)) as connection:
        try:
            connection.request("GET", target)
        except ConnectionRefusedError:
            return None
        return connection.getresponse().status


@pytest.mark.parametrize(
    ("setting", "metrics"),
    [
        pytest.param("listen", 200, id="the address of everything"),
        pytest.param("listen-plan", 404, id="the address of plans alone"),
    ],
)
def test_an_address_in_use_is_told_once_and_served_from_the_next_start_on(
    tmp_path: Path, setting: str, metrics: int
) -> None:
    with taken() as stranger:
        at = address(stranger)
        with running(tmp_path, *MACHINE, f"--{setting}", at) as daemon:
            assert daemon.get("/plan?gpus=0").status == 200
            (line,) = says(daemon, IN_USE)
            assert line.endswith(
                f"{setting}: {at}: {IN_USE}; give another by --{setting} HOST:PORT, or none; "
                "it is tried again at the next start, and all else is served"
            )
            (first,) = says(daemon, "answers on")
            assert at not in first
            assert daemon.stop() == 0
    with running(tmp_path, *MACHINE, f"--{setting}", at) as daemon:
        assert status(at, "/plan?gpus=0") == 200
        assert status(at, "/metrics") == metrics
        assert daemon.stop() == 0
    assert status(at, "/plan?gpus=0") is None


def test_the_one_address_is_served_while_the_other_is_in_use(tmp_path: Path) -> None:
    with taken() as stranger, taken() as gone:
        free = address(gone)
        gone.close()
        with running(tmp_path, *MACHINE, "--listen-plan", free, listen=address(stranger)) as daemon:
            assert (status(free, "/plan?gpus=0"), status(free, "/metrics")) == (200, 404)
            assert len(says(daemon, IN_USE)) == 1


def test_it_ends_well_while_its_address_is_in_use(tmp_path: Path) -> None:
    with taken() as stranger, running(tmp_path, *MACHINE, listen=address(stranger)) as daemon:
        eventually(lambda: says(daemon, IN_USE), "it is told")
        assert daemon.stop() == 0
        assert not daemon.socket.exists()


def test_the_unix_socket_is_taken_first_and_who_listens_there_ends_the_start(
    tmp_path: Path,
) -> None:
    with taken() as stranger, running(tmp_path, *MACHINE) as daemon:
        second = spawn(tmp_path, *MACHINE, listen=address(stranger))
        assert second.process.wait(PATIENCE) == 1
        (line,) = second.complaints
        assert f"process {daemon.process.pid} listens there already" in line
