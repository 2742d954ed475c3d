"""Work that takes long: its answer is there later, and little of it is begun."""

from __future__ import annotations

import threading

import pytest

from affinityd.enforce.policy import environ
from affinityd.enforce.policy.environ import MOST_STUCK, TimedCalls


def test_what_hangs_is_waited_for_so_long_and_answers_later_and_little_of_it_is_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, hang = TimedCalls[int, bool](), threading.Event()
    assert calls.result(0, lambda: False) is False
    monkeypatch.setattr(environ, "SECONDS", 0.01)
    for key in (*range(MOST_STUCK), 0):  # the last is asked for again, and is none more
        with pytest.raises(TimeoutError):
            calls.result(key, hang.wait)
    with pytest.raises(TimeoutError):
        calls.result(MOST_STUCK, lambda: False)
    monkeypatch.undo()
    hang.set()
    for late in calls._late.values():
        late.result()
    assert [calls.result(key, lambda: False) for key in (0, MOST_STUCK)] == [True, False]
