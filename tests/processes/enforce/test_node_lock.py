"""Of several daemons on a node one pins: real processes, a real lock."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from affinityd.enforce.hindrances import NodeLock
from tests.support.paths import REPOSITORY

#: Says whether it is the one, once for each line that it is told.
DAEMON = """
import sys
from affinityd.enforce.hindrances import NodeLock
node_lock = NodeLock(sys.argv[1])
for _ in sys.stdin:
    print(node_lock.acquire(), flush=True)
"""


class Daemon:
    """A process that would pin."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def acquire(self) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        return self.process.stdout.readline().removesuffix("\n")


@contextmanager
def daemon(lock: Path) -> Iterator[Daemon]:
    command = [sys.executable, "-c", DAEMON, os.fspath(lock)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Daemon(process)
        finally:
            process.kill()


@contextmanager
def here(lock: Path) -> Iterator[NodeLock]:
    """Be one of them, in this process."""
    node_lock = NodeLock(os.fspath(lock))
    try:
        yield node_lock
    finally:
        if node_lock._file is not None:
            os.close(node_lock._file)


def taken(lock: Path) -> str:
    return (
        f"another daemon pins on this node (fuser {lock} names it): this one observes, and pins "
        "when that one has ended"
    )


def test_the_second_observes_until_the_first_is_killed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with daemon(lock) as first, daemon(lock) as second:
        assert first.acquire() == "None"
        assert second.acquire() == taken(lock)
        assert [first.acquire(), second.acquire()] == ["None", taken(lock)]
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        assert second.acquire() == "None"
        with here(lock) as third:
            assert third.acquire() == taken(lock)


@pytest.mark.parametrize("left_over", [b"", b"4711\n", b"\xff" * 100, b"a longer text\n" * 10])
def test_a_file_that_a_dead_daemon_left_is_taken_over(tmp_path: Path, left_over: bytes) -> None:
    lock = tmp_path / "lock"
    lock.write_bytes(left_over)
    with here(lock) as node_lock:
        assert node_lock.acquire() is None


def test_the_file_is_for_its_user_node_lock_and_its_new_folder_for_everybody(
    tmp_path: Path,
) -> None:
    lock = tmp_path / "run" / "lock"
    before = os.umask(0o077)
    try:
        with here(lock) as node_lock:
            assert node_lock.acquire() is None
    finally:
        os.umask(before)
    assert (lock.stat().st_mode & 0o777, lock.parent.stat().st_mode & 0o777) == (0o600, 0o755)


def test_a_lock_that_was_taken_away_is_had_anew(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with here(lock) as first, here(lock) as second:
        assert first.acquire() is None
        lock.unlink()
        assert second.acquire() is None
        assert first.acquire() == taken(lock)


def test_a_lock_that_is_replaced_while_it_is_taken_is_not_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "lock"

    def replaced(file: int, operation: int) -> None:
        lock.rename(tmp_path / "before")
        lock.touch()
        flock(file, operation)

    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", replaced)
    with here(lock) as first:
        assert first.acquire() == taken(lock)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda lock: lock.symlink_to(lock.parent / "elsewhere"), "Too many levels of symbolic li"),
        (lambda lock: lock.mkdir(), "Is a directory"),
    ],
    ids=["a link", "a folder"],
)
def test_what_is_no_file_is_no_lock(tmp_path: Path, make: Callable[[Path], None], why: str) -> None:
    lock = tmp_path / "lock"
    make(lock)
    with here(lock) as node_lock:
        told = node_lock.acquire()
    expected = f"the lock of the one daemon that pins on a node cannot be had: {lock}: {why}"
    assert told is not None
    assert told.startswith(expected)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("lock", "why"),
    [
        ("/proc/self/lock", "No such file or directory"),
        ("/proc/self/new/lock", "No such file or directory"),
        ("/dev/null/lock", "Not a directory"),
    ],
    ids=["a folder that takes no file", "one that cannot be made", "no folder"],
)
def test_where_no_file_can_be_it_is_said(lock: str, why: str) -> None:
    with here(Path(lock)) as node_lock:
        assert node_lock.acquire() == (
            f"the lock of the one daemon that pins on a node cannot be had: {lock}: {why}"
        )
