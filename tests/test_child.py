from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from affinityd.discovery.child import GRACE, ChildError, output

Work = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    """Run one statement in a child, which finds it on this process's own path."""
    monkeypatch.syspath_prepend(tmp_path)

    def run(statement: str, timeout: float = 10) -> str:
        (tmp_path / "job.py").write_text(f"import os, sys, time\ndef work(): {statement}\n")
        return output("job", "work", timeout)

    return run


def test_what_the_function_prints_is_returned(run: Work) -> None:
    assert run("print('done')") == "done\n"


def test_a_child_is_no_part_of_its_parents_process_group(run: Work) -> None:
    assert run("print(os.getpgrp() == os.getpid())") == "True\n"


def test_a_child_inherits_no_open_file(run: Work) -> None:
    with Path(os.devnull).open() as held:
        os.set_inheritable(held.fileno(), True)  # noqa: FBT003  it takes it by position only
        assert run("print(len(os.listdir('/proc/self/fd')))") == "4\n"


def test_an_answer_larger_than_a_pipe_is_whole(run: Work) -> None:
    assert len(run("print('x' * 1_000_000)")) == 1_000_001


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        pytest.param("os.abort()", "crashed: Aborted", id="it crashes"),
        pytest.param("os.kill(os.getpid(), 9)", "crashed: Killed", id="it is killed"),
        pytest.param("os._exit(3)", "failed: exit status 3", id="it fails without a word"),
        pytest.param("1 / 0", "failed: ZeroDivisionError: division by zero", id="it raises"),
    ],
)
def test_a_failure_is_one_line(run: Work, statement: str, error: str) -> None:
    with pytest.raises(ChildError) as failure:
        run(statement)
    assert str(failure.value) == error


def test_a_child_that_hangs_is_given_up_in_time(run: Work) -> None:
    started = time.monotonic()
    with pytest.raises(ChildError) as failure:
        run("time.sleep(60)", timeout=0.5)
    assert str(failure.value) == "did not answer within 0.5 s"
    assert time.monotonic() - started < 0.5 + GRACE + 1


def test_a_child_that_cannot_be_started_is_told(run: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/python")
    with pytest.raises(ChildError, match=r"could not be asked: .*No such file.*'/no/python'"):
        run("print('done')")
