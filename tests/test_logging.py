"""Log lines are one line each, whatever is in them, and all of them are on stdout."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from affinityd.daemon.logging import JsonFormatter, TextFormatter

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
        f"from affinityd.daemon.logging import configure\nconfigure({form!r})"
    )
    return subprocess.run(
        [sys.executable, "-c", f"{code}\n{statement}"],
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


def test_a_log_that_takes_no_line_is_no_end_and_no_failure() -> None:
    with Path("/dev/full").open("w") as full:
        done = run("text", "logging.getLogger('x').info('told')", full.fileno())
    assert (done.returncode, done.stderr) == (0, "")
