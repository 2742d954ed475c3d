"""Log lines: one for each record, as text or as JSON, without control characters.

A thread writes them to stdout: a pipe whose reader has stopped, or a full disk, costs lines, but
delays no answer.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from queue import SimpleQueue

from affinityd.text import one_line

MOST_LINES = 1000  #: lines that may wait; lines beyond them are lost
END_SECONDS = 1.0  #: that the end of the process waits for unwritten lines

log = logging.getLogger(__name__)


class TextFormatter(logging.Formatter):
    """LEVEL message; the journal adds the time."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        trace = (line.strip() for line in _trace(record).splitlines())
        message = ": ".join(filter(None, (_message(record), " | ".join(trace))))
        return f"{record.levelname.lower()}: {one_line(message)}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line; the traceback, if there is one, is its `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        line = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        if trace := _trace(record):
            line["exception"] = trace
        # The one control character that JSON does not escape.
        return json.dumps(line).replace("\x7f", "\\u007f")


class LineLog(logging.Handler):
    """Formats records, and queues MOST_LINES of them at most, which a thread writes to a file."""

    def __init__(self, file: int, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._file = file
        # Of the queues only this one bears a finalizer that logs while a line is being put.
        self._waiting = SimpleQueue[str | None]()
        self._thread = threading.Thread(target=self._write_lines, daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record's line."""
        if self._waiting.qsize() < MOST_LINES:
            self._waiting.put(self.format(record))

    def end(self) -> None:
        """Wait for the unwritten lines, END_SECONDS at most."""
        self._waiting.put(None)
        self._thread.join(END_SECONDS)

    def _write_lines(self) -> None:
        while (line := self._waiting.get()) is not None:
            rest = f"{line}\n".encode(errors="replace")
            with suppress(OSError):
                while rest:
                    rest = rest[os.write(self._file, rest) :]


@contextmanager
def log_on_stdout(log_format: str) -> Iterator[None]:
    """Send to stdout, as "text" or "json", every log record, warning and exception of a thread."""
    logging.raiseExceptions = False  # a log that takes no more lines is no reason for others
    # A client gets its errors as answers; a line for each would let it fill the log.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.captureWarnings(True)  # noqa: FBT003 - it takes it by position only
    threading.excepthook = sys.unraisablehook = _uncaught
    if sys.stdout is None:  # it is closed
        logging.basicConfig(handlers=[logging.NullHandler()], force=True)
        yield
        return
    with writing(sys.stdout.fileno(), log_format) as lines:
        logging.basicConfig(handlers=[lines], level=logging.INFO, force=True)
        yield


@contextmanager
def writing(file: int, log_format: str) -> Iterator[LineLog]:
    """Yield a handler whose lines, "text" or "json", a thread writes to a file."""
    lines = LineLog(file, JsonFormatter() if log_format == "json" else TextFormatter())
    try:
        yield lines
    finally:
        lines.end()


def _message(record: logging.LogRecord) -> str:
    return record.getMessage().rstrip()  # Python's warnings end in a line's end


def _trace(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


def _uncaught(raised: threading.ExceptHookArgs | sys.UnraisableHookArgs) -> None:
    log.critical("this is a bug", exc_info=raised.exc_value)
