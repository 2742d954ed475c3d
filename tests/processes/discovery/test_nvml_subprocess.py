from __future__ import annotations

import fcntl
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from affinityd.discovery.nvml.fork import forked_output
from affinityd.discovery.nvml.subprocess import ChildError, output
from tests.support.children import children_of
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


# The same, in a fork of this process.


def sleep() -> str:
    time.sleep(60)
    return ""


def open_files() -> list[str]:
    return sorted(file.name for file in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize(
    ("work", "found"),
    [
        (lambda: "x" * 1_000_000, "x" * 1_000_000),
        (lambda: str(os.write(1, b"noise")), "5"),
        (lambda: str(os.getpgrp() == os.getpid()), "True"),
        (lambda: " ".join(open_files()), "0 1 2 3 4"),  # the last is the folder's
    ],
    ids=["size", "noise", "process group", "open files"],
)
def test_what_a_function_returns_in_a_fork_is_returned(work: Callable[[], str], found: str) -> None:
    assert forked_output(work, 10) == found


def test_a_fork_may_end_where_its_parent_ignores_that() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as the daemon's parent may have had it
    try:
        assert forked_output(lambda: "done", 10) == "done"
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_fork_keeps_no_file_beyond_the_limit_of_files() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Path(os.devnull).open() as held:
        fcntl.fcntl(held, fcntl.F_DUPFD, 300)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
        try:
            assert forked_output(lambda: " ".join(open_files()), 10) == "0 1 2 3 4"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            os.close(300)


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (os.abort, "crashed: Aborted"),
        (lambda: os._exit(3), "failed: exit status 3"),
        (lambda: str(1 // 0), "failed: ZeroDivisionError: integer division or modulo by zero"),
        (sleep, "did not answer within 0.2 s"),
    ],
)
def test_a_fork_that_fails_is_one_line_and_leaves_nothing(
    work: Callable[[], str], error: str
) -> None:
    files = open_files()
    with pytest.raises(ChildError) as failure:
        forked_output(work, 0.2 if "0.2" in error else 10)
    assert str(failure.value) == error
    assert (open_files(), children_of(os.getpid())) == (files, [])


@pytest.mark.skipif(not os.access(FREEZER, os.W_OK), reason="no cgroup v1 freezer to write to")
def test_while_a_fork_hangs_in_the_kernel_no_other_is_made(freezer: Path) -> None:
    def hang() -> str:
        for file, text in (("cgroup.procs", "0"), ("freezer.state", "FROZEN")):
            (freezer / file).write_text(text)
        return ""

    for error in (r"^did not answer within 1 s$", r"^still hangs in an earlier query"):
        with pytest.raises(ChildError, match=error):
            forked_output(hang, 1)
    (stuck,) = (freezer / "cgroup.procs").read_text().split()
    (freezer / "freezer.state").write_text("THAWED")
    eventually(lambda: Path(f"/proc/{stuck}/stat").read_text().split()[2] == "Z", "it has ended")
    assert forked_output(lambda: "done", 10) == "done"


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
