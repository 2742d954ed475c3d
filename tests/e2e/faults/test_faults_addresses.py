"""The daemon's addresses: another process listens at the socket's path, or at the TCP address.

tests/e2e/systemd and tests/e2e/fuzz check that the daemon ends when its socket is deleted.
"""

import http.client
import signal
import socket
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.daemons import PATIENCE, free_port, running
from tests.support.servers import hanging, serving

MACHINE = "dgx-a100"
IN_USE = "Address already in use"


@pytest.mark.parametrize(("is_ended", "status"), [(True, 0), (False, 1)])
def test_another_daemon_s_socket_is_kept(tmp_path: Path, is_ended: bool, status: int) -> None:
    """A daemon of a later release may start before the older daemon has ended."""
    later = tmp_path / "later.sock"
    with running(tmp_path, "--machine", MACHINE) as daemon, serving(later, hanging):
        later.rename(daemon.socket)  # the daemon exits once it notices this
        if is_ended:
            daemon.signal(signal.SIGTERM)
        assert daemon.process.wait(PATIENCE) == status
        assert daemon.socket.exists()


def statuses(at: str) -> list[int]:
    """Return the statuses of a plan and of the metrics over TCP."""
    answers = []
    for target in ("/plan?gpus=0", "/metrics"):
        with closing(http.client.HTTPConnection(at, timeout=PATIENCE)) as connection:
            connection.request("GET", target)
            answers.append(connection.getresponse().status)
    return answers


@pytest.mark.parametrize(
    ("setting", "other"), [("listen", "listen-plan"), ("listen-plan", "listen")]
)
def test_an_address_in_use_is_logged_once(tmp_path: Path, setting: str, other: str) -> None:
    served = {"listen": [200, 200], "listen-plan": [200, 404]}
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        at, free = (f"127.0.0.1:{port}" for port in (stranger.getsockname()[1], free_port()))
        arguments = ("--machine", MACHINE, f"--{setting}", at, f"--{other}", free)
        with running(tmp_path, *arguments) as daemon:
            assert daemon.get("/plan?gpus=0").status == 200
            assert statuses(free) == served[other]
            (line,) = daemon.says(IN_USE)
            assert line.endswith(
                f"{setting}: {at}: {IN_USE}; give another by --{setting} HOST:PORT, or none; "
                "the next start tries this address again; everything else is served"
            )
            (first,) = daemon.says("answers on")
            assert at not in first
            assert daemon.stop() == 0
