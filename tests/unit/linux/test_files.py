"""Files of /proc with any bytes in them, and reads that take too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from affinityd.linux.files import environment_of, in_time
from tests.support.machines.sysfs_tree import put


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("A=1\0B=2\0", {"A": "1", "B": "2"}),
        ("A=1\0A=2\0", {"A": "1"}),
        ("A=1\0\0B=\0", {"A": "1", "B": ""}),  # `env -i '' …` can make an empty entry
        ("ray::Worker\0\0\0\0", {}),  # a title, no environment
    ],
)
def test_an_environment_is_read_entry_by_entry(
    tmp_path: Path, data: str, expected: dict[str, str]
) -> None:
    put(tmp_path / "proc/1/environ", data)
    environ = (tmp_path / "proc/1/environ").read_bytes()
    (tmp_path / "proc/1/environ").write_bytes(environ.rstrip(b"\n"))
    assert environment_of(1, str(tmp_path)) == expected


def test_a_late_reader_is_not_waited_for() -> None:
    with pytest.raises(TimeoutError):
        in_time(lambda: time.sleep(5), 0.01)
    with pytest.raises(ZeroDivisionError):
        in_time(lambda: 1 / 0, 5)


@pytest.fixture
def no_threads() -> Iterator[None]:
    threading.stack_size(2**50)  # more memory than there is
    yield
    threading.stack_size(0)


@pytest.mark.usefixtures("no_threads")
def test_a_file_is_read_even_if_no_thread_can_start() -> None:
    with pytest.raises(RuntimeError, match="can't start new thread"):
        threading.Thread(target=print).start()
    assert in_time(lambda: 7, 0.0) == 7
