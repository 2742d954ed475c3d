"""Log lines: one for each record, as text or JSON, without control characters.

A thread writes them to stdout. If the reader of a pipe has stopped, or the disk is full, lines are
lost, but no answer is delayed.
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
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue

from affinityd.text import one_line

MOST_LINES = 1000  #: lines that may wait to be written; more are lost
END_SECONDS = 1.0  #: seconds that the process's end waits for unwritten lines

log = logging.getLogger(__name__)


class TextFormatter(logging.Formatter):
    """Formats a record as LEVEL message; the journal adds the time."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        message = _message(record)
        trace = " | ".join(line.strip() for line in _trace(record).splitlines())
        if message and trace:
            message += ": "
        return f"{record.levelname.lower()}: {one_line(message + trace)}"


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object a line; `exception` has the traceback, if any."""

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
        # JSON does not escape this control character.
        return json.dumps(line).replace("\x7f", "\\u007f")


class LineQueue(QueueHandler):
    """Formats records, and queues MOST_LINES of them at most."""

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue a record, whose message is the formatted line."""
        if self.queue.qsize() < MOST_LINES:  # type: ignore[attr-defined]
            super().enqueue(record)


class LineWriter(QueueListener):
    """Writes queued lines to a file from a thread; to the journal with priorities, sd-daemon(3)."""

    def __init__(self, lines: SimpleQueue[logging.LogRecord], file: int) -> None:
        super().__init__(lines)
        self._file = file
        stream = os.fstat(file)
        self._is_journal = os.environ.get("JOURNAL_STREAM") == f"{stream.st_dev}:{stream.st_ino}"

    def handle(self, record: logging.LogRecord) -> None:
        """Write a line."""
        line = f"{record.msg}\n"
        if self._is_journal:
            priorities = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4}  # syslog(3)
            line = f"<{priorities.get(record.levelno, 6)}>{line}"
        rest = line.encode(errors="replace")
        with suppress(OSError):
            while rest:
                rest = rest[os.write(self._file, rest) :]

    def stop(self) -> None:
        """Wait for the unwritten lines, END_SECONDS at most."""
        self.enqueue_sentinel()
        if self._thread is not None:
            self._thread.join(END_SECONDS)


@contextmanager
def log_on_stdout(log_format: str) -> Iterator[None]:
    """Write log records, warnings, and exceptions of threads to stdout, as "text" or "json"."""
    logging.raiseExceptions = False  # a log that cannot be written must not log errors about that
    # Clients get errors as answers; with a line for each, a client could fill the log.
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
def writing(file: int, log_format: str) -> Iterator[LineQueue]:
    """Yield a handler whose lines, "text" or "json", a thread writes to a file."""
    # Only this class of queue works if a finalizer logs while a line is being put.
    lines = SimpleQueue[logging.LogRecord]()
    handler = LineQueue(lines)
    writer = LineWriter(lines, file)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    writer.start()
    try:
        yield handler
    finally:
        writer.stop()


def _message(record: logging.LogRecord) -> str:
    return record.getMessage().rstrip()  # Python's warnings end with a line break


def _trace(record: logging.LogRecord) -> str:
    if not record.exc_info:
        return ""
    return logging.Formatter().formatException(record.exc_info)


def _uncaught(raised: threading.ExceptHookArgs | sys.UnraisableHookArgs) -> None:
    log.critical("this is a bug", exc_info=raised.exc_value)
