"""Log lines are one line each, and a log that takes none for a while holds up nothing.

Real processes, pipes and devices.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from affinityd.daemon.logging import (
    END_SECONDS,
    MOST_LINES,
    JsonFormatter,
    LineWriter,
    TextFormatter,
)
from tests.support.daemons import PATIENCE

NASTY = "asked for \x1b[31m\r\n'\x00' \x7f \u2028 \ud800"


def record(message: str, *, failed: bool = False) -> logging.LogRecord:
    cause = None
    if failed:
        try:
            int("first\nsecond")
        except ValueError:
            cause = sys.exc_info()
    return logging.LogRecord("affinityd.test", logging.WARNING, "f", 1, "%s", (message,), cause)


@pytest.mark.parametrize("failed", [False, True], ids=["a message", "a traceback"])
def test_text_is_one_line_without_control_characters(failed: bool) -> None:
    line = TextFormatter().format(record(NASTY, failed=failed))
    assert line.startswith("warning: asked for \\x1b[31m\\r\\n'\\x00' \\x7f \\u2028 \\ud800")
    assert line.isprintable()
    assert ("ValueError: invalid literal" in line) == failed


@pytest.mark.parametrize("failed", [False, True], ids=["a message", "a traceback"])
def test_json_is_one_object_a_line_and_a_traceback_a_field_of_it(failed: bool) -> None:
    line = JsonFormatter().format(record(NASTY, failed=failed))
    assert line.isprintable()
    told = json.loads(line)
    assert (told["level"], told["logger"]) == ("warning", "affinityd.test")
    assert told["message"] == NASTY
    trace = told.get("exception", "").splitlines()
    assert trace[:1] == (["Traceback (most recent call last):"] if failed else [])
    assert ("ValueError: invalid literal" in "".join(trace)) == failed


#: What writes lines in a process, and what the line says.
SOURCES = {
    "a record": ("logging.getLogger('x').info('told')", "told"),
    "a warning of Python's": ("warnings.warn('told')", "UserWarning: told"),
    "a thread that fails": (
        "t = threading.Thread(target=int, args=('told',)); t.start(); t.join()",
        "this is a bug",
    ),
    "an object that cannot end": (
        "type('T', (), {'__del__': lambda self: int('told')})()",
        "this is a bug",
    ),
}


def run(form: str, statement: str, stdout: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run a statement in a process whose logs are written as the daemon's."""
    code = (
        "import logging, threading, warnings\n"
        f"from affinityd.daemon.logging import log_on_stdout\nwith log_on_stdout({form!r}):"
    )
    return subprocess.run(
        [sys.executable, "-c", f"{code}\n    {statement}"],
        stdout=subprocess.PIPE if stdout is None else stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("statement", "message"), SOURCES.values(), ids=SOURCES)
def test_everything_is_one_line_on_stdout(statement: str, message: str) -> None:
    as_text, as_json = (run(form, statement) for form in ("text", "json"))
    for done in (as_text, as_json):
        assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
        assert "told" in done.stdout
    assert message in as_text.stdout
    assert message in json.loads(as_json.stdout)["message"]


LONG = "x" * 1000  #: of such lines a pipe holds fewer than are queued: pipe(7)


@contextmanager
def writing(
    file: int, formatter: logging.Formatter | None = None
) -> Iterator[Callable[[str], None]]:
    """Return what logs a message to a file."""
    handler = LineWriter(file, formatter or TextFormatter())
    try:
        yield lambda message: handler.emit(
            logging.LogRecord("x", logging.INFO, "f", 1, message, (), None)
        )
    finally:
        handler.end()


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
    os.close(reader)  # lines fail now, and the thread goes on to its end
    time.sleep(0.1)  # the number that it writes to will be another file's
    os.close(writer)


def test_all_that_is_told_is_written_in_its_order_before_the_end(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    with writing(writer) as tell:
        for number in range(100):
            tell(f"line {number}")
    assert os.read(reader, 65536).decode().splitlines() == [f"info: line {n}" for n in range(100)]


def test_a_reader_that_stops_holds_up_no_line_and_gets_the_number_that_it_missed(
    pipe: tuple[int, int],
) -> None:
    reader, writer = pipe
    told = 5 * MOST_LINES
    with writing(writer) as tell:
        began = time.monotonic()
        for number in range(told):
            tell(f"line {number} {LONG}")
        assert time.monotonic() - began < PATIENCE
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
    assert END_SECONDS / 2 < time.monotonic() - began < PATIENCE


@pytest.mark.parametrize("file", ["a device that is full", "a pipe without a reader"])
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


def test_a_disk_that_has_room_again_gets_lines_and_how_many_are_missing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    full = os.open("/dev/full", os.O_WRONLY)
    with writing(full) as tell:
        tell("lost")
        tell("lost too")
        time.sleep(0.5)  # until both have been tried
        disk = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(disk, full)
        tell("after")
        while "missing" not in path.read_text():
            time.sleep(0.01)
    for number in (full, disk):
        os.close(number)
    assert path.read_text().splitlines() == [
        "info: after",
        "warning: 2 lines are missing above: the log took no more",
    ]
