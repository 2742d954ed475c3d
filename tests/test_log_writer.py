"""A log that takes no lines for a while costs lines and holds up nobody. Real pipes and devices."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from affinityd.daemon.log_writer import END_SECONDS, MOST_LINES, LogWriter
from affinityd.daemon.logging import JsonFormatter, TextFormatter

LONG = "x" * 1000  #: of such lines a pipe holds fewer than a writer keeps: pipe(7)


@contextmanager
def writing(file: int, formatter: logging.Formatter | None = None) -> Iterator[Told]:
    """Write to a file, and return what logs a message there."""
    writer = Told(file)
    writer.setFormatter(formatter or TextFormatter())
    try:
        yield writer
    finally:
        writer.flush()
        writer.close()


class Told(LogWriter):
    """One that is told messages."""

    def __call__(self, message: str) -> None:
        self.handle(logging.LogRecord("x", logging.INFO, "f", 1, message, (), None))


def read_lines(file: int, until: str) -> list[str]:
    """Read a pipe up to the line that has this in it."""
    data = b""
    while until.encode() not in data or not data.endswith(b"\n"):
        data += os.read(file, 65536)
    return data.decode().splitlines()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    for thread in threading.enumerate():
        if thread.name == "log":  # the number that it writes to will be another file's
            thread.join()
    os.close(writer)


def test_all_that_is_told_is_written_in_its_order_before_the_end(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    with writing(writer) as tell:
        for number in range(100):
            tell(f"line {number}")
    assert os.read(reader, 65536).decode().splitlines() == [f"info: line {n}" for n in range(100)]


def test_a_reader_that_stops_holds_up_nobody_and_hears_what_it_missed(
    pipe: tuple[int, int],
) -> None:
    reader, writer = pipe
    told = 5 * MOST_LINES
    with writing(writer) as tell:
        began = time.monotonic()
        for number in range(told):
            tell(f"line {number} {LONG}")
        assert time.monotonic() - began < END_SECONDS
        *lines, notice = read_lines(reader, "are missing above")
    numbers = [int(line.split()[2]) for line in lines]
    assert numbers == sorted(set(numbers))
    assert MOST_LINES <= len(lines) < MOST_LINES + 100
    missing = told - len(lines)
    assert notice == f"warning: {missing} lines are missing above: the log took no more"


def test_what_is_missing_is_told_once_and_in_the_form_of_the_log(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    with writing(writer, JsonFormatter()) as tell:
        for _ in range(2 * MOST_LINES):
            tell(LONG)
        assert '"level": "warning"' in read_lines(reader, "are missing above")[-1]
        tell("afterwards")
        assert len(read_lines(reader, "afterwards")) == 1


def test_a_reader_that_stops_does_not_hold_up_the_end(pipe: tuple[int, int]) -> None:
    _, writer = pipe
    with writing(writer) as tell:
        for _ in range(MOST_LINES):
            tell(LONG)
        began = time.monotonic()
    assert END_SECONDS / 2 < time.monotonic() - began < 3 * END_SECONDS


def test_a_pipe_that_does_not_want_to_be_waited_for_gets_every_line(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.set_blocking(writer, False)
    with writing(writer) as tell:
        for number in range(MOST_LINES // 2):
            tell(f"{number} {LONG}")
        tell("the last")
        lines = read_lines(reader, "the last")
    assert [line.split()[1] for line in lines[:-1]] == [str(n) for n in range(MOST_LINES // 2)]


@pytest.mark.parametrize("file", ["a device that is full", "a pipe that nobody reads any more"])
def test_lines_that_cannot_be_written_are_no_failure(file: str) -> None:
    if file == "a device that is full":
        writer = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, writer = os.pipe()
        os.close(reader)
    with writing(writer) as tell:
        for _ in range(10):
            tell("told")
    os.close(writer)


def test_a_disk_that_has_room_again_has_whole_lines_and_the_number_of_the_others(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    with writing(file) as tell:
        tell("before")
    closed = os.open(path, os.O_RDONLY)  # what is open for reading takes no line
    os.dup2(closed, file)
    with writing(file) as tell:
        tell("lost")
        tell("lost too")
        tell.flush()  # until both have been tried
        again = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(again, file)
        tell("after")
    for number in (file, closed, again):
        os.close(number)
    assert path.read_text().splitlines() == [
        "info: before",
        "info: after",
        "warning: 2 lines are missing above: the log took no more",
    ]
