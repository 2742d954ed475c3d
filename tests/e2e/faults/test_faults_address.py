"""Another process listens on the daemon's TCP address: any user may, who comes first."""

from __future__ import annotations

import http.client
import socket
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.daemons import PATIENCE, running
from tests.support.ports import free_port

IN_USE = "Address already in use"


def statuses(at: str) -> list[int | None]:
    """Return how a plan and the metrics are answered over TCP; None: not at all."""
    found: list[int | None] = []
    for target in ("/plan?gpus=0", "/metrics"):
        with closing(http.client.HTTPConnection(at, timeout=PATIENCE)) as connection:
            try:
                connection.request("GET", target)
                found.append(connection.getresponse().status)
            except ConnectionRefusedError:
                found.append(None)
    return found


@pytest.mark.parametrize(
    ("setting", "other"), [("listen", "listen-plan"), ("listen-plan", "listen")]
)
def test_an_address_in_use_is_told_once_and_served_from_the_next_start_on(
    tmp_path: Path, setting: str, other: str
) -> None:
    served = {"listen": [200, 200], "listen-plan": [200, 404]}
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        at, free = (f"127.0.0.1:{port}" for port in (stranger.getsockname()[1], free_port()))
        arguments = ("--machine", "dgx-a100", f"--{setting}", at, f"--{other}", free)
        with running(tmp_path, *arguments) as daemon:
            assert daemon.get("/plan?gpus=0").status == 200
            assert statuses(free) == served[other]
            (line,) = daemon.says(IN_USE)
            assert line.endswith(
                f"{setting}: {at}: {IN_USE}; give another by --{setting} HOST:PORT, or none; it "
                "is tried again at the next start; everything else is served"
            )
            (first,) = daemon.says("answers on")
            assert at not in first
            assert daemon.stop() == 0
    with running(tmp_path, *arguments) as daemon:
        assert statuses(at) == served[setting]
        assert daemon.stop() == 0
    assert statuses(at) == [None, None]
