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

from affinityd.client.forked import run_forked
from affinityd.errors import AffinityError, NoSuchGpuError
from tests.support.children import children_of

LATE = 30  #: seconds that a busy machine may be late


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


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
    assert run_forked(lambda: result, soon()) == result


def test_what_it_raises_is_raised() -> None:
    def refuse() -> None:
        raise NoSuchGpuError("no GPU 9")

    with pytest.raises(NoSuchGpuError, match=r"^no GPU 9$"):
        run_forked(refuse, soon())
    with pytest.raises(AffinityError, match=r"^KeyError: 'NOWHERE'$"):
        run_forked(lambda: os.environ["NOWHERE"], soon())


@pytest.mark.parametrize("end", [lambda: os._exit(0), lambda: os.kill(os.getpid(), 9), sys.exit])
def test_a_child_that_ends_without_a_result_is_an_error(end: Callable[[], None]) -> None:
    with pytest.raises(AffinityError, match="ended without a word"):
        run_forked(end, soon())


@pytest.mark.parametrize("slow", [spin, swallow_everything, fill_the_pipe_too_late])
def test_what_is_not_in_time_is_cut_whatever_it_does(slow: Callable[[], None]) -> None:
    start, children = time.monotonic(), children_of(os.getpid())
    with pytest.raises(TimeoutError):
        run_forked(slow, soon(0.1))
    assert 0.1 <= time.monotonic() - start < 0.1 + LATE
    assert children_of(os.getpid()) == children  # it is reaped


def test_a_stuck_child_keeps_no_reader_of_the_output_waiting() -> None:
    """The parent is gone: the child holds nothing of its, and ends by itself."""
    code = (
        "import os, signal, time; from affinityd.client.forked import run_forked\n"
        "print('here', flush=True)\n"
        "run_forked(lambda: os.kill(os.getppid(), signal.SIGKILL) or time.sleep(60), "
        "time.monotonic() + 60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        out, _ = parent.communicate(timeout=30)
    assert (out, parent.returncode) == (b"here\n", -signal.SIGKILL)


def test_where_no_time_is_left_it_is_cut_at_once() -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        run_forked(spin, soon(-1))
    assert time.monotonic() - start < LATE


def test_nothing_of_it_stays_with_the_process() -> None:
    """Neither a file nor a child, nor a change of what the function changes."""
    files, children = list(Path("/proc/self/fd").iterdir()), children_of(os.getpid())
    seen: list[int] = []
    run_forked(lambda: seen.append(1), soon())
    assert seen == []
    assert list(Path("/proc/self/fd").iterdir()) == files
    assert children_of(os.getpid()) == children


@pytest.mark.parametrize("slow", ["lambda: 1", "lambda: time.sleep(60)"])
def test_a_parent_that_ignores_its_children_s_ends_gets_the_same(slow: str) -> None:
    code = f"""
import signal, time
from affinityd.client.forked import run_forked
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
try: print(run_forked({slow}, time.monotonic() + 0.3))
except TimeoutError: print("late")
"""
    said = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=30)
    assert said == ("1\n" if slow == "lambda: 1" else "late\n")


def test_an_alarm_of_the_parent_s_ends_the_command_that_is_executed() -> None:
    """alarm(2) outlives execve(2): that is how a shell's `timeout` of old worked."""
    code = """
import os, signal, time
from affinityd.client.forked import run_forked
signal.alarm(1)
run_forked(lambda: None, time.monotonic() + 5)
os.execvp("sleep", ["sleep", "20"])
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=30)
    assert done.returncode == -signal.SIGALRM
