"""Another process listens on the daemon's TCP address: any user may, who comes first."""

from __future__ import annotations

import http.client
import socket
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.faults.elsewhere import says
from tests.support.daemons import PATIENCE, running
from tests.support.ports import free_port

IN_USE = "Address already in use"


def status(at: str, target: str) -> int | None:
    """Return what is answered over TCP; None: nothing."""
    with closing(http.client.HTTPConnection(at, timeout=PATIENCE)) as connection:
        try:
            connection.request("GET", target)
        except ConnectionRefusedError:
            return None
        return connection.getresponse().status


@pytest.mark.parametrize(
    ("setting", "metrics", "other", "its_metrics"),
    [("listen", 200, "listen-plan", 404), ("listen-plan", 404, "listen", 200)],
)
def test_an_address_in_use_is_told_once_and_served_from_the_next_start_on(
    tmp_path: Path, setting: str, metrics: int, other: str, its_metrics: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        at, free = (f"127.0.0.1:{port}" for port in (stranger.getsockname()[1], free_port()))
        arguments = ("--machine", "dgx-a100", f"--{setting}", at, f"--{other}", free)
        with running(tmp_path, *arguments) as daemon:
            assert daemon.get("/plan?gpus=0").status == 200
            assert (status(free, "/plan?gpus=0"), status(free, "/metrics")) == (200, its_metrics)
            (line,) = says(daemon, IN_USE)
            assert line.endswith(
                f"{setting}: {at}: {IN_USE}; give another by --{setting} HOST:PORT, or none; it "
                "is tried again at the next start; everything else is served"
            )
            (first,) = says(daemon, "answers on")
            assert at not in first
            assert daemon.stop() == 0
            assert not daemon.socket.exists()
    with running(tmp_path, *arguments) as daemon:
        assert (status(at, "/plan?gpus=0"), status(at, "/metrics")) == (200, metrics)
        assert daemon.stop() == 0
    assert status(at, "/plan?gpus=0") is None
