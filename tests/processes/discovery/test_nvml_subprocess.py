from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from affinityd.discovery.nvml.subprocess import ChildError, output
from tests.support.daemons import eventually

Work = Callable[..., str]

FREEZER = Path("/sys/fs/cgroup/freezer")
NOISE = "os.write(1, b'NVRM: noise'), __import__('ctypes').CDLL(None).puts(b'more of it')"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    """Run one statement in a child, which finds it on this process's own path."""
    monkeypatch.syspath_prepend(tmp_path)

    def run(statement: str, timeout: float = 10) -> str:
        (tmp_path / "job.py").write_text(f"import os, sys, time\ndef work(): {statement}\n")
        return output("job", "work", timeout)

    return run


@pytest.mark.parametrize(
    ("statement", "printed"),
    [
        (f"{NOISE}, print('done')", "done\n"),
        ("print(os.getpgrp() == os.getpid())", "True\n"),
        ("print(len(os.listdir('/proc/self/fd')))", "5\n"),  # its stdout twice, and no open file
        ("print('x' * 1_000_000)", f"{'x' * 1_000_000}\n"),  # more than a pipe holds
    ],
    ids=["noise", "process group", "open files", "size"],
)
def test_what_the_function_prints_is_returned(run: Work, statement: str, printed: str) -> None:
    with Path(os.devnull).open() as held:
        os.set_inheritable(held.fileno(), True)  # noqa: FBT003  it takes it by position only
        assert run(statement) == printed


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("os.abort()", "crashed: Aborted"),
        ("os.kill(os.getpid(), 9)", "crashed: Killed"),
        ("os._exit(3)", "failed: exit status 3"),
        ("1 / 0", "failed: ZeroDivisionError: division by zero"),
    ],
)
def test_a_failure_is_one_line(run: Work, statement: str, error: str) -> None:
    with pytest.raises(ChildError) as failure:
        run(statement)
    assert str(failure.value) == error


@pytest.fixture
def freezer() -> Iterator[Path]:
    """Return a cgroup whose processes no signal ends, as if a driver held them in the kernel."""
    folder = FREEZER / f"test-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        (folder / "freezer.state").write_text("THAWED")
        eventually(lambda: not (folder / "cgroup.procs").read_text(), "all have ended")
        folder.rmdir()


@pytest.mark.skipif(not os.access(FREEZER, os.W_OK), reason="no cgroup v1 freezer to write to")
def test_while_a_child_hangs_in_the_kernel_no_other_is_started(run: Work, freezer: Path) -> None:
    hang = f"[open('{freezer}/' + file, 'w').write(text) for file, text in (('cgroup.procs', '0'), "
    with pytest.raises(ChildError, match=r"^did not answer within 1 s$"):
        run(f"{hang}('freezer.state', 'FROZEN'))]", timeout=1)
    (stuck,) = (freezer / "cgroup.procs").read_text().split()
    for _ in range(2):
        with pytest.raises(ChildError, match=f"^still hangs in .* query, in process {stuck}$"):
            run("print('done')")
    (freezer / "freezer.state").write_text("THAWED")
    eventually(lambda: Path(f"/proc/{stuck}/stat").read_text().split()[2] == "Z", "it has ended")
    assert run("print('done')") == "done\n"


def test_a_child_that_cannot_be_started_is_told(run: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/python")
    with pytest.raises(ChildError, match=r"could not be asked: .*No such file.*'/no/python'"):
        run("print('done')")
