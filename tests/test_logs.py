"""Log lines are one line each, whatever is in them."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from affinityd.logs import JsonFormatter, TextFormatter

NASTY = "asked for \x1b[31m\r\n'\x00'"


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
    assert line.startswith("warning: asked for \\x1b[31m\\r\\n'\\x00'")
    assert line.isprintable()
    assert ("ValueError: invalid literal" in line) == failed


def test_json_is_one_object_a_line() -> None:
    line = JsonFormatter().format(record(NASTY, failed=True))
    assert "\n" not in line
    told = json.loads(line)
    assert (told["level"], told["logger"]) == ("warning", "affinityd.test")
    assert told["message"].startswith(NASTY)
