"""Log records are one line each, and a log that cannot be written delays nothing.

Real processes, pipes and devices.
"""

import json
import logging
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from affinityd.daemon import logging as daemon_logging
from affinityd.daemon.logging import MOST_LINES, JsonFormatter, TextFormatter, writing
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


@pytest.mark.parametrize("failed", [False, True])
def test_a_record_is_one_line_without_control_characters(failed: bool) -> None:
    line = TextFormatter().format(record(NASTY, failed=failed))
    assert line.startswith("warning: asked for \\x1b[31m\\r\\n'\\x00' \\x7f \\u2028 \\ud800")
    assert line.isprintable()
    assert ("ValueError: invalid literal" in line) == failed
    line = JsonFormatter().format(record(NASTY, failed=failed))
    assert line.isprintable()
    told = json.loads(line)
    assert (told["level"], told["logger"], told["message"]) == ("warning", "affinityd.test", NASTY)
    trace = told.get("exception", "").splitlines()
    assert trace[:1] == (["Traceback (most recent call last):"] if failed else [])
    assert ("ValueError: invalid literal" in "".join(trace)) == failed


CODE = """
import logging, threading, warnings
from affinityd.daemon.logging import log_on_stdout
with log_on_stdout({form!r}):
    {statement}
"""
FAILS_IN_A_THREAD = "t = threading.Thread(target=int, args=('told',)); t.start(); t.join()"
FAILS_AT_ITS_END = "type('T', (), {'__del__': lambda self: int('told')})()"


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("logging.getLogger('x').info('told')", "told"),
        ("warnings.warn('told')", "UserWarning: told"),
        (FAILS_IN_A_THREAD, "this is a bug"),
        (FAILS_AT_ITS_END, "this is a bug"),
    ],
)
def test_warnings_and_exceptions_are_one_line_each_on_stdout(statement: str, message: str) -> None:
    for form in ("text", "json"):
        code = CODE.format(form=form, statement=statement)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
        assert "told" in done.stdout
        assert message in (json.loads(done.stdout)["message"] if form == "json" else done.stdout)


LONG = "x" * 1000  #: a pipe holds fewer such lines than the queue, pipe(7)


@contextmanager
def telling(file: int, log_format: str = "text") -> Iterator[Callable[[str], None]]:
    with writing(file, log_format) as lines:

        def tell(text: str) -> None:
            lines.handle(logging.LogRecord("x", logging.INFO, "f", 1, text, (), None))

        yield tell


def read_lines(file: int, until: str) -> list[str]:
    data = b""
    while until.encode() not in data or not data.endswith(b"\n"):
        assert select.select([file], [], [], PATIENCE)[0], f"no {until!r} in {data[-1000:]!r}"
        data += os.read(file, 65536)
    return data.decode().splitlines()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    others = {*threading.enumerate()}
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)  # writes fail now, and the thread ends
    for thread in {*threading.enumerate()} - others:
        thread.join(PATIENCE)  # its file descriptor will be reused
    os.close(writer)


def test_a_reader_that_stops_delays_no_answer_and_gets_later_lines(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    with telling(writer, "json") as tell:
        for number in range(5 * MOST_LINES):
            tell(f"line {number} {LONG}")
        lines = [json.loads(line) for line in read_lines(reader, f"line {MOST_LINES - 1} ")]
        numbers = [int(line["message"].split()[1]) for line in lines]
        assert numbers == sorted(set(numbers))
        rest = b""
        while select.select([reader], [], [], 0.2)[0]:
            rest += os.read(reader, 65536)
        assert len(lines) + rest.count(b"\n") < 2 * MOST_LINES
        tell("afterwards")
        assert len(read_lines(reader, "afterwards")) == 1


def test_a_reader_that_stops_does_not_delay_shutdown(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_logging, "END_SECONDS", 0.1)
    with telling(pipe[1]) as tell:
        for _ in range(MOST_LINES):
            tell(LONG)


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_journal_is_told_the_priority_of_each_line(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    reader, writer = pipe
    stream = os.fstat(writer)
    streams = {f"{stream.st_dev}:{stream.st_ino}": ["<2>", "<3>", "<4>", "<6>"], "1:2": [""] * 4}
    for journal, priorities in streams.items():
        monkeypatch.setenv("JOURNAL_STREAM", journal)  # inherited even if stdout is a file
        with writing(writer, form) as lines:
            for level in (50, 40, 30, 20):
                lines.handle(logging.LogRecord("x", level, "f", 1, "told", (), None))
        told = os.read(reader, 65536).decode().splitlines()
        begins = [line[: -len(line.lstrip("<>0123456789"))] for line in told]
        assert begins == priorities
