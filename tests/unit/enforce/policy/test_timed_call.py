"""Work that is held up: nobody waits for it long, and little of it is begun."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from affinityd.enforce.policy import environ
from affinityd.enforce.policy.environ import MOST_STUCK, TimedCalls


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """Return what holds work up until the test is over."""
    event = threading.Event()
    yield event
    event.set()


def test_what_is_done_in_time_is_the_result() -> None:
    assert TimedCalls().result(lambda: {"a": "b"}) == {"a": "b"}


def test_what_hangs_is_waited_for_so_long_and_no_longer(
    hang: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environ, "SECONDS", 0.05)
    began = time.monotonic()
    assert TimedCalls().result(hang.wait) is None
    assert 0.05 <= time.monotonic() - began < 1


def test_where_much_hangs_no_more_is_begun_until_it_ends(
    hang: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environ, "SECONDS", 0.01)
    patience = TimedCalls()
    for _ in range(MOST_STUCK):
        assert patience.result(hang.wait) is None
    assert patience.result(lambda: 1) is None
    hang.set()
    for thread in patience._stuck:
        thread.join()
    assert patience.result(lambda: 1) == 1
