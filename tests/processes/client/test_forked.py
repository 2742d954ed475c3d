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


def spin() -> None:
    while True:
        pass


def swallow_everything() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        with suppress(BaseException):
            time.sleep(10)


def fill_the_pipe_too_late() -> str:
    time.sleep(0.3)
    return "x" * 10**6


@pytest.mark.parametrize("result", [None, "a place", (2, {"a": "b"}, [None]), "x" * 10**6])
def test_what_is_in_time_is_returned(result: object) -> None:
    assert run_forked(lambda: result, within()) == result


@pytest.mark.parametrize(
    ("function", "error", "told"),
    [
        (refuse, NoSuchGpuError, "no GPU 9"),
        (lambda: os.environ["NOWHERE"], AffinityError, "KeyError: 'NOWHERE'"),
        (lambda: os._exit(0), AffinityError, "the planning process ended without an answer"),
        (lambda: os.kill(os.getpid(), 9), AffinityError, "ended without an answer"),
        (sys.exit, AffinityError, "ended without an answer"),
    ],
)
def test_what_it_raises_is_raised_and_an_end_without_a_result_is_an_error(
    function: Callable[[], object], error: type[AffinityError], told: str
) -> None:
    with pytest.raises(error, match=f"{told}$"):
        run_forked(function, within())


@pytest.mark.parametrize("seconds", [0.1, -1])
@pytest.mark.parametrize("slow", [spin, swallow_everything, fill_the_pipe_too_late])
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


def ended(code: str) -> tuple[int, str]:
    """Return the exit status of a program that forks so, and what it printed."""
    head = "import os, signal, time\nfrom affinityd.client.forked import run_forked\n"
    command = [sys.executable, "-c", head + code]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout


def test_a_stuck_child_keeps_no_reader_of_the_output_waiting() -> None:
    """The parent is gone: the child holds nothing of its, and ends by itself."""
    stuck = "lambda: os.kill(os.getppid(), signal.SIGKILL) or time.sleep(600)"
    code = f"print('here', flush=True)\nrun_forked({stuck}, time.monotonic() + 600)"
    assert ended(code) == (-signal.SIGKILL, "here\n")


@pytest.mark.parametrize(("slow", "said"), [("lambda: 1", "1"), ("lambda: time.sleep(60)", "late")])
def test_a_parent_that_ignores_its_children_s_ends_gets_the_same(slow: str, said: str) -> None:
    code = f"""
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
try: print(run_forked({slow}, time.monotonic() + {0.3 if said == "late" else PATIENCE}))
except TimeoutError: print("late")
"""
    assert ended(code) == (0, f"{said}\n")


def test_an_alarm_of_the_parent_s_ends_the_command_that_is_executed() -> None:
    """alarm(2) outlives execve(2): that is how a shell's `timeout` of old worked."""
    code = """
signal.setitimer(signal.ITIMER_REAL, 0.3)
run_forked(lambda: None, time.monotonic() + 60)
os.execvp("sleep", ["sleep", "600"])
"""
    assert ended(code)[0] == -signal.SIGALRM
