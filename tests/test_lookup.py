"""Names of hosts: found, or not, and never for longer than there is time."""

from __future__ import annotations

import _socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from affinityd.client import http as client
from affinityd.client.deadline import look_up
from affinityd.errors import DaemonError, NoDaemonError

NAME = "http://gpu-node.example:9465"


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have no name server answer before the test ends."""
    ends = threading.Event()

    def look(*_: Any) -> Any:  # noqa: ANN401 - getaddrinfo's
        ends.wait()
        raise _socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(_socket, "getaddrinfo", look)
    yield
    ends.set()


def test_a_name_is_its_address() -> None:
    assert look_up("localhost", "9465", 5.0) in {
        (_socket.AF_INET, ("127.0.0.1", 9465)),
        (_socket.AF_INET6, ("::1", 9465, 0, 0)),
    }


@pytest.mark.parametrize(
    ("host", "error"), [("127.0.0.1.1", OSError), ("x" * 70 + ".y", UnicodeError)]
)
def test_what_is_nobodys_name_is_an_error(host: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        look_up(host, "9465", 5.0)


@pytest.mark.usefixtures("silent")
def test_a_name_server_that_does_not_answer_holds_up_nobody() -> None:
    began = time.monotonic()
    with pytest.raises(DaemonError, match=r"did not answer in time$") as told:
        client.ask_plan(NAME, {}, began + 0.05)
    assert not isinstance(told.value, NoDaemonError)
    with pytest.raises(DaemonError, match=r"^the daemon at http://gpu-node\S+ was not found in"):
        client.numeric(NAME, time.monotonic() + 0.05)
    assert time.monotonic() < began + 5


def test_a_user_who_may_have_no_more_threads_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(NoDaemonError, match="can't start new thread"):
        client.ask_plan("http://127.0.0.1:1", {}, time.monotonic() + 5)
