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
from contextlib import contextmanager
from datetime import datetime, timezone
from queue import SimpleQueue

from affinityd.text import one_line

MOST_LINES = 1000  #: lines that may wait; lines beyond them are lost, and counted
END_SECONDS = 1.0  #: that the end of the process waits for unwritten lines

log = logging.getLogger(__name__)


class TextFormatter(logging.Formatter):
    """LEVEL message; the time is the journal's business."""

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


class LineWriter(logging.Handler):
    """Writes lines to a file from a thread; at most MOST_LINES wait.

    Once the file accepts lines again, a line tells how many are missing.
    """

    def __init__(self, file: int, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._file = file
        # Of the queues only this one bears a finalizer that logs while a line is being put.
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._dropped = 0  # lines that found no room
        self._thread = threading.Thread(target=self._write_lines, daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Format a record and queue it."""
        if self._lines.qsize() >= MOST_LINES:
            self._dropped += 1
            return
        try:
            self._lines.put(self.format(record))
        except Exception:  # noqa: BLE001 - as of every handler
            self.handleError(record)

    def end(self) -> None:
        """Wait for the unwritten lines, END_SECONDS at most."""
        self._lines.put(None)
        self._thread.join(END_SECONDS)

    def _write_lines(self) -> None:
        failed = reported = 0
        while (line := self._lines.get()) is not None:
            if not self._write(line):
                failed += 1
            elif self._lines.empty() and (lost := self._dropped + failed - reported):
                text = "%d lines are missing above: the log could not be written"
                notice = logging.LogRecord(log.name, logging.WARNING, "", 0, text, (lost,), None)
                reported += lost if self._write(self.format(notice)) else 0

    def _write(self, line: str) -> bool:
        """Write a line, however long that takes; return whether the file took it."""
        rest = f"{line}\n".encode(errors="replace")
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            return False
        return True


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
    formatter = JsonFormatter() if log_format == "json" else TextFormatter()
    handler = LineWriter(sys.stdout.fileno(), formatter)
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    try:
        yield
    finally:
        handler.end()


def _message(record: logging.LogRecord) -> str:
    return record.getMessage().rstrip()  # Python's warnings end in a line's end


def _trace(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


def _uncaught(raised: threading.ExceptHookArgs | sys.UnraisableHookArgs) -> None:
    log.critical("this is a bug", exc_info=raised.exc_value)
