"""A deadline for what has none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from affinityd.client import deadline
from affinityd.client.deadline import TooLateError, within
from affinityd.errors import ApplyError

pytestmark = pytest.mark.processes

LATE = 0.1  #: seconds that a busy machine may be late


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Leave no timer and no handler to other tests."""
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def spin() -> None:
    while True:
        pass


def read_what_never_comes() -> None:
    reading, writing = os.pipe()
    try:
        os.read(reading, 1)
    finally:
        os.close(reading)
        os.close(writing)


def swallow_errors() -> None:
    while True:
        with suppress(Exception):
            time.sleep(10)


def test_what_is_in_time_is_returned_and_raises_as_it_does() -> None:
    assert within(5, lambda: "a place") == "a place"
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0)


class Lingering:
    """What is raised while it is collected is swallowed."""

    def __del__(self) -> None:
        time.sleep(5)


def swallow_the_first_ring() -> None:
    Lingering()
    spin()


@pytest.mark.parametrize(
    "slow", [spin, read_what_never_comes, swallow_errors, swallow_the_first_ring]
)
def test_what_is_not_in_time_is_cut_whatever_it_does(slow: Callable[[], None]) -> None:
    start = time.monotonic()
    with pytest.raises(ApplyError, match=r"^finding a place took too long$"):
        within(0.2, slow)
    assert 0.2 <= time.monotonic() - start < 0.2 + LATE


@pytest.mark.parametrize("seconds", [0, -1])
def test_where_no_time_is_left_it_is_cut_at_once(seconds: float) -> None:
    start = time.monotonic()
    with pytest.raises(ApplyError):
        within(seconds, spin)
    assert time.monotonic() - start < LATE


@pytest.mark.parametrize("what", [lambda: None, spin, lambda: 1 // 0])
def test_the_handler_and_the_timer_are_as_before(what: Callable[[], object]) -> None:
    def mine(_number: int, _frame: object) -> None:
        pass

    signal.signal(signal.SIGALRM, mine)
    with suppress(ApplyError, ZeroDivisionError):
        within(0.05, what)
    assert signal.getsignal(signal.SIGALRM) is mine
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("what", [lambda: None, spin])
def test_a_timer_that_was_running_goes_on(what: Callable[[], object]) -> None:
    signal.setitimer(signal.ITIMER_REAL, 100, 7)
    with suppress(ApplyError):
        within(0.05, what)
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    assert 99 < left <= 100
    assert interval == 7


def test_a_timer_that_was_running_rings_when_it_would_have() -> None:
    rung = []
    signal.signal(signal.SIGALRM, lambda *_: rung.append(time.monotonic()))
    start = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.6)
    within(5, lambda: time.sleep(0.4))
    while not rung:
        time.sleep(0.01)
    assert 0.6 <= rung[0] - start < 0.6 + LATE


def test_an_alarm_of_the_parent_s_ends_the_command_that_is_executed() -> None:
    """alarm(2) outlives execve(2): that is how a shell's `timeout` of old worked."""
    code = """
import os, signal
from affinityd.client.deadline import within
signal.alarm(1)
within(5, lambda: None)
os.execvp("sleep", ["sleep", "20"])
"""
    start = time.monotonic()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], check=False, env=env, timeout=30)
    assert done.returncode == -signal.SIGALRM
    assert 1 <= time.monotonic() - start < 5


def test_no_alarm_reaches_the_command_that_is_executed() -> None:
    code = """
import os
from affinityd.client.deadline import within
within(0.05, lambda: None)
os.execvp("sleep", ["sleep", "0.3"])
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], check=False, env=env).returncode == 0


@pytest.mark.parametrize("what", [lambda: None, spin])
def test_a_timer_that_rings_before_anything_began_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, what: Callable[[], object]
) -> None:
    """A busy machine may take this process off its CPU as soon as the timer is set."""
    monkeypatch.setattr(deadline, "LEAST", 1e-6)
    for _ in range(200):
        try:
            with suppress(ApplyError):
                within(0, what)
        except TooLateError:
            pytest.fail("the deadline came out as what nobody catches")
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
