"""A function with a deadline: a child of this process runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from affinityd.client import forked
from affinityd.client.forked import run_forked
from affinityd.errors import AffinityError, NoSuchGpuError
from tests.support.children import children_of
from tests.support.daemons import PATIENCE


@pytest.fixture(autouse=True)
def _a_busy_machine_is_slow_to_end_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "LINGER", PATIENCE)


def within(seconds: float = PATIENCE) -> float:
    return time.monotonic() + seconds


def refuse() -> None:
    raise NoSuchGpuError("no GPU 9")


def swallow_everything() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        with suppress(BaseException):
            time.sleep(10)


def fill_the_pipe_too_late() -> str:
    time.sleep(0.3)
    return "x" * 10**6


@pytest.mark.parametrize("result", [None, (2, {"a": "b"}, [None]), "x" * 10**6])
def test_what_is_in_time_is_returned(result: object) -> None:
    assert run_forked(lambda: result, within()) == result


ENDED = "the planning process ended without an answer"


@pytest.mark.parametrize(
    ("function", "error", "told"),
    [
        (refuse, NoSuchGpuError, "no GPU 9"),
        (lambda: os.environ["NOWHERE"], AffinityError, "KeyError: 'NOWHERE'"),
        (lambda: os.kill(os.getpid(), 9), AffinityError, ENDED),
        (sys.exit, AffinityError, ENDED),
    ],
)
def test_what_it_raises_is_raised_and_an_end_without_a_result_is_an_error(
    function: Callable[[], object], error: type[AffinityError], told: str
) -> None:
    with pytest.raises(error, match=f"^{told}$"):
        run_forked(function, within())


@pytest.mark.parametrize("seconds", [0.1, -1])
@pytest.mark.parametrize("slow", [swallow_everything, fill_the_pipe_too_late])
def test_what_is_not_in_time_is_cut_whatever_it_does(
    slow: Callable[[], object], seconds: float
) -> None:
    children, deadline = children_of(os.getpid()), within(seconds)
    with pytest.raises(TimeoutError):
        run_forked(slow, deadline)
    assert time.monotonic() >= deadline
    assert children_of(os.getpid()) == children  # it is reaped


def test_nothing_of_it_stays_with_the_process() -> None:
    """Neither a file nor a child, nor a change of what the function changes."""
    files, children = list(Path("/proc/self/fd").iterdir()), children_of(os.getpid())
    seen: list[int] = []
    run_forked(lambda: seen.append(1), within())
    assert seen == []
    assert list(Path("/proc/self/fd").iterdir()) == files
    assert children_of(os.getpid()) == children


# Programs that fork so: what becomes of them.

STUCK = """
print("here", flush=True)
run_forked(lambda: os.kill(os.getppid(), signal.SIGKILL) or time.sleep(600), time.monotonic() + 600)
"""
IGNORING = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(run_forked(lambda: 1, time.monotonic() + 600))
try: run_forked(lambda: time.sleep(600), time.monotonic() + 0.3)
except TimeoutError: print("late")
"""
#: alarm(2) outlives execve(2): that is how a shell's `timeout` of old worked.
ALARMED = """
signal.setitimer(signal.ITIMER_REAL, 0.3)
run_forked(lambda: None, time.monotonic() + 60)
os.execvp("sleep", ["sleep", "600"])
"""


@pytest.mark.parametrize(
    ("code", "status", "printed"),
    [
        pytest.param(STUCK, -signal.SIGKILL, "here\n", id="a stuck child keeps no output open"),
        pytest.param(IGNORING, 0, "1\nlate\n", id="children's ends may be ignored"),
        pytest.param(ALARMED, -signal.SIGALRM, "", id="an alarm ends the command"),
    ],
)
def test_a_program_that_forks_so_ends_as_it_would(code: str, status: int, printed: str) -> None:
    head = "import os, signal, time\nfrom affinityd.client.forked import run_forked\n"
    command = [sys.executable, "-c", head + code]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (status, printed)
