"""What keeps a daemon from pinning: a privilege that it lacks, or another one that pins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from affinityd.enforce.enforcer import INITIAL_USERS as USERS
from affinityd.enforce.enforcer import NO_SYS_NICE, NOT_ALL_PIDS, NOT_ALL_USERS, NodeLock, lacking
from affinityd.linux.processes import INITIAL_PIDS as PIDS

ALL = "CapEff:\t000001ffffffffff\n"


@pytest.mark.parametrize(
    ("pids", "users", "status", "expected"),
    [
        (PIDS, USERS, ALL, None),
        (PIDS, USERS, "CapPrm:\t0\nCapEff:\t0000000000800000\nX:\n", None),
        (None, None, ALL, None),  # a kernel without namespaces
        ("pid:[4026532000]", USERS, ALL, NOT_ALL_PIDS),
        (PIDS, "user:[4026532000]", ALL, NOT_ALL_USERS),
        (PIDS, USERS, "CapPrm:\t000001ffffffffff\nCapEff:\t000001ffff7fffff\n", NO_SYS_NICE),
        (PIDS, USERS, "", NO_SYS_NICE),
    ],
)
def test_what_is_missing_is_said(
    tmp_path: Path, pids: str | None, users: str | None, status: str, expected: str | None
) -> None:
    namespaces = tmp_path / "self" / "ns"
    namespaces.mkdir(parents=True)
    for name, namespace in (("pid", pids), ("user", users)):
        if namespace is not None:
            (namespaces / name).symlink_to(namespace)
    (tmp_path / "self" / "status").write_text(status)
    assert lacking(os.fspath(tmp_path)) == expected


# Of several daemons on a node one pins.


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@contextmanager
def daemon(lock: Path) -> Iterator[NodeLock]:
    """Be one of them, until it ends: flock(2) tells two that opened the file apart."""
    node_lock = NodeLock(os.fspath(lock))
    try:
        yield node_lock
    finally:
        if node_lock._file is not None:
            os.close(node_lock._file)


def taken(lock: Path) -> str:
    told = f"another daemon pins on this node (fuser {lock} names it)"
    return f"{told}: this daemon observes until the other has ended"


def test_the_second_observes_until_the_first_has_ended(lock: Path) -> None:
    lock.write_bytes(b"\xff4711\n")  # of one that was killed
    with daemon(lock) as second:
        with daemon(lock) as first:
            assert [first.acquire(), second.acquire(), first.acquire()] == [None, taken(lock), None]
        assert second.acquire() is None
        with daemon(lock) as third:
            assert third.acquire() == taken(lock)


def test_the_file_is_for_its_user_alone_and_its_new_folder_for_all(tmp_path: Path) -> None:
    lock = tmp_path / "run" / "lock"
    before = os.umask(0o077)
    try:
        with daemon(lock) as node_lock:
            assert node_lock.acquire() is None
    finally:
        os.umask(before)
    assert (lock.stat().st_mode & 0o777, lock.parent.stat().st_mode & 0o777) == (0o600, 0o755)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("link", "Too many levels of symbolic links"),
        ("folder", "Is a directory"),
        ("/proc/self/lock", "No such file or directory"),  # a folder that takes no file
        ("/proc/self/new/lock", "No such file or directory"),  # one that cannot be made
    ],
)
def test_where_no_file_can_be_it_is_said(tmp_path: Path, path: str, why: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "folder").mkdir()
    with daemon(lock := tmp_path / path) as node_lock:
        told = "the lock of the one daemon that pins on a node cannot be taken"
        assert node_lock.acquire() == f"{told}: {lock}: {why}"
    assert not (tmp_path / "elsewhere").exists()
