"""Functions that run in a child process, which may hang or crash."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from affinityd.discovery.nvml.query import query_processes
from affinityd.errors import AffinityError, NoSuchGpuError
from affinityd.linux import children
from affinityd.linux.children import Child, ChildError, run, run_program
from affinityd.linux.processes import stat_of
from tests.support.children import children_of
from tests.support.daemons import PATIENCE, eventually

FREEZER = Path("/sys/fs/cgroup/freezer")

needs_freezer = pytest.mark.skipif(
    not os.access(FREEZER, os.W_OK), reason="no cgroup v1 freezer to write to"
)


@pytest.fixture(autouse=True)
def _a_busy_machine_is_slow_to_end_a_child(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "freezer" not in request.fixturenames:
        monkeypatch.setattr(children, "GRACE", PATIENCE)


@pytest.fixture
def freezer() -> Iterator[Path]:
    """Return a cgroup; while it is frozen, not even SIGKILL ends its processes."""
    folder = FREEZER / f"test-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        (folder / "freezer.state").write_text("THAWED")
        eventually(lambda: not (folder / "cgroup.procs").read_text(), "all have ended")
        folder.rmdir()


def within(seconds: float = PATIENCE) -> float:
    return time.monotonic() + seconds


def open_files() -> list[str]:
    return sorted(file.name for file in Path("/proc/self/fd").iterdir())


def refuse() -> bytes:
    raise NoSuchGpuError("no GPU 9")


def ignore_signals() -> bytes:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        with suppress(BaseException):
            time.sleep(10)


def look_up() -> bytes:
    return os.environ["NOWHERE"].encode()


def kill_itself() -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def answer_too_late() -> bytes:
    time.sleep(0.3)
    return b"x" * 10**6


@pytest.mark.parametrize(
    ("work", "result"),
    [
        pytest.param(lambda: b"x" * 10**6, b"x" * 10**6, id="more than a pipe holds"),
        pytest.param(lambda: b"%d" % os.write(1, b"noise"), b"5", id="the output goes nowhere"),
        pytest.param(lambda: b"%d" % (os.getpgrp() == os.getpid()), b"1", id="a group of its own"),
        pytest.param(lambda: " ".join(open_files()).encode(), b"0 1 2 3 4", id="no other file"),
    ],
)
def test_a_result_is_returned_and_no_process_or_file_remains(
    work: Callable[[], bytes], result: bytes
) -> None:
    files, before = open_files(), children_of(os.getpid())
    assert run(work, within()) == result
    assert (open_files(), children_of(os.getpid())) == (files, before)


@pytest.mark.parametrize(
    ("work", "error", "text"),
    [
        (refuse, NoSuchGpuError, "no GPU 9"),
        (lambda: b"%d" % (1 // 0), ChildError, "failed: ZeroDivisionError: .*"),
        (look_up, ChildError, "failed: KeyError: 'NOWHERE'"),
        (kill_itself, ChildError, "crashed: Killed"),
        (os.abort, ChildError, "crashed: Aborted"),
        (sys.exit, ChildError, "ended early"),
    ],
)
def test_an_exception_is_raised_again_and_a_crash_is_an_error(
    work: Callable[[], bytes], error: type[AffinityError], text: str
) -> None:
    with pytest.raises(error, match=f"^{text}$"):
        run(work, within())


@pytest.mark.parametrize("seconds", [0.1, -1])
@pytest.mark.parametrize("slow", [ignore_signals, answer_too_late])
def test_a_child_that_takes_too_long_is_killed(slow: Callable[[], bytes], seconds: float) -> None:
    files, before, deadline = open_files(), children_of(os.getpid()), within(seconds)
    with pytest.raises(TimeoutError):
        run(slow, deadline)
    assert time.monotonic() >= deadline
    assert (open_files(), children_of(os.getpid())) == (files, before)


def test_parts_are_read_as_soon_as_they_are_written() -> None:
    def parts() -> Iterator[bytes]:
        for number in range(2):
            yield b"%d" % number
            time.sleep(0.2)
        os.abort()

    child = Child(parts, PATIENCE)
    assert [child.read(within()) for _ in range(3)] == [b"0", b"1", b""]
    assert child.end(PATIENCE) == -signal.SIGABRT


def test_a_program_started_by_a_child_is_killed_with_the_child() -> None:
    def parts() -> Iterator[bytes]:
        yield b"%d" % subprocess.Popen(["sleep", "600"]).pid
        time.sleep(600)

    child = Child(parts, PATIENCE)
    program = int(child.read(within()))
    child.end()
    eventually(lambda: (stat := stat_of(program)) is None or stat.is_zombie, "it has ended")


@needs_freezer
def test_no_child_is_started_while_another_hangs_in_the_kernel(freezer: Path) -> None:
    def hang() -> bytes:
        for file, text in (("cgroup.procs", "0"), ("freezer.state", "FROZEN")):
            (freezer / file).write_text(text)
        return b""

    with pytest.raises(TimeoutError):
        run(hang, within(1))
    (stuck,) = (freezer / "cgroup.procs").read_text().split()
    with pytest.raises(ChildError, match=f"^still hangs in an earlier query, in process {stuck}$"):
        run(lambda: b"", within())
    assert query_processes(PATIENCE).has_hung
    (freezer / "freezer.state").write_text("THAWED")
    eventually(lambda: Path(f"/proc/{stuck}/stat").read_text().split()[2] == "Z", "it has ended")
    assert run(lambda: b"done", within()) == b"done"


# How programs that have forked children exit.

STUCK = """
print("here", flush=True)
run(lambda: os.kill(os.getppid(), signal.SIGKILL) or time.sleep(600), time.monotonic() + 600)
"""
IGNORING = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(run(lambda: b"1", time.monotonic() + 600))
try: run(lambda: time.sleep(600), time.monotonic() + 0.3)
except TimeoutError: print("late")
"""


@pytest.mark.parametrize(
    ("code", "status", "printed"),
    [
        pytest.param(STUCK, -signal.SIGKILL, "here\n", id="a stuck child keeps no output open"),
        pytest.param(IGNORING, 0, "b'1'\nlate\n", id="children's ends may be ignored"),
    ],
)
def test_a_program_that_forks_exits_as_usual(code: str, status: int, printed: str) -> None:
    head = "import os, signal, time\nfrom affinityd.linux.children import run\n"
    command = [sys.executable, "-c", head + code]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (status, printed)


def test_a_program_is_killed_at_its_deadline_with_the_programs_that_it_started(
    tmp_path: Path,
) -> None:
    started = tmp_path / "pid"
    with pytest.raises(TimeoutError):
        run_program(["sh", "-c", f"sleep 600 & echo $! > {started}; wait"], 1.0)
    state = Path(f"/proc/{started.read_text().strip()}/stat")
    eventually(lambda: not state.exists() or state.read_text().split()[2] == "Z", "it has ended")


def test_a_program_that_cannot_be_started_is_an_error_of_one_line() -> None:
    with pytest.raises(ChildError, match=r"\Acannot be run: No such file or directory\Z"):
        run_program(["/none"], 1.0)
    done = run_program(["sh", "-c", "echo out; echo error >&2; exit 3"], PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"error\n")
