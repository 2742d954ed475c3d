"""Work that is held up: it is not waited for long, and little of it is begun."""

from __future__ import annotations

import threading

import pytest

from affinityd.enforce.policy import environ
from affinityd.enforce.policy.environ import MOST_STUCK, TimedCalls


def test_what_hangs_is_waited_for_so_long_and_where_much_does_no_more_is_begun_until_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, hang = TimedCalls(), threading.Event()
    assert calls.result(lambda: {"a": "b"}) == {"a": "b"}
    monkeypatch.setattr(environ, "SECONDS", 0.01)
    for _ in range(MOST_STUCK):
        assert calls.result(hang.wait) is None
    assert calls.result(lambda: 1) is None
    monkeypatch.undo()
    hang.set()
    for thread in calls._stuck:
        thread.join()
    assert calls.result(lambda: 1) == 1
