"""Addresses of daemons that contain the name of a host, as a pod has them."""

import socket
import time

import pytest

from affinityd.client import ask_daemon
from affinityd.errors import DaemonError, NoDaemonError
from affinityd.kubernetes.node_plan import numeric
from tests.support.daemons import PATIENCE

NAME = "http://gpu-node.example:9465"


def test_a_host_s_name_is_resolved_to_its_address() -> None:
    found = numeric("http://localhost:9465", time.monotonic() + 5)
    assert found in {"http://127.0.0.1:9465", "http://[::1]:9465"}


@pytest.mark.parametrize("host", ["127.0.0.1.1", "x" * 70 + ".y"], ids=["unknown", "no name"])
def test_an_unknown_host_is_no_daemon(host: str) -> None:
    with pytest.raises(NoDaemonError, match=f"^no daemon at http://{host}:9465: "):
        numeric(f"http://{host}:9465", time.monotonic() + 5)


def test_a_silent_name_server_delays_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(1000))
    began = time.monotonic()
    with pytest.raises(DaemonError, match=r"^the daemon at http://gpu-node\S+ was not found in"):
        numeric(NAME, began + 0.05)
    assert time.monotonic() < began + PATIENCE


@pytest.mark.parametrize("address", [NAME, "http://127.0.0.1:http", "http://:1"])
def test_the_client_resolves_no_names(address: str) -> None:
    with pytest.raises(NoDaemonError, match="by their numbers"):
        ask_daemon.ask_plan(address, {}, time.monotonic() + 5)
