"""Log lines: one a record, as text for people and the journal or as JSON, no control characters.

A thread writes them to stdout: a pipe whose reader has stopped, or a full disk, costs lines and
holds up no answer.
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
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue

from affinityd.text import one_line

MOST_LINES = 1000  #: that wait; what is logged beyond them is lost, and counted
END_SECONDS = 1.0  #: that the end of the process waits for what is not written yet

log = logging.getLogger(__name__)


class TextFormatter(logging.Formatter):
    """LEVEL message; the time is the journal's business."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        trace = (line.strip() for line in _trace(record).splitlines())
        message = ": ".join(filter(None, (_message(record), " | ".join(trace))))
        return f"{record.levelname.lower()}: {one_line(message)}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line; what was raised is its `exception`."""

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
        # The one control character that JSON lets pass.
        return json.dumps(line).replace("\x7f", "\\u007f")


class BoundedQueueHandler(QueueHandler):
    """Queues lines for a LogListener, at most MOST_LINES."""

    def __init__(self, formatter: logging.Formatter) -> None:
        """Take the form of the lines."""
        # Of the queues only this one bears a finalizer that logs while a line is being put.
        self.lines: SimpleQueue[logging.LogRecord | None] = SimpleQueue()
        super().__init__(self.lines)
        self.setFormatter(formatter)
        self.dropped = 0  #: lines that found no room

    def emit(self, record: logging.LogRecord) -> None:
        """Format a record and queue it."""
        if self.lines.qsize() < MOST_LINES:
            super().emit(record)
        else:
            self.dropped += 1


class LogListener(QueueListener):
    """Writes queued lines to a file, and how many are missing once it takes lines again."""

    def __init__(self, handler: BoundedQueueHandler, file: int) -> None:
        """Take what queues the lines, and the number of the file."""
        super().__init__(handler.lines)
        self._handler = handler
        self._file = file
        self._failed = 0  # lines that could not be written
        self._reported = 0  # lost lines that the log has counted

    def handle(self, record: logging.LogRecord) -> None:
        """Write a line, however long that takes."""
        if not self._write(record.msg):
            self._failed += 1
        elif self._handler.lines.empty():
            self._report_lost_lines()

    def _report_lost_lines(self) -> None:
        lost = self._handler.dropped + self._failed - self._reported
        message = "%d lines are missing above: the log took no more"
        notice = logging.LogRecord(log.name, logging.WARNING, "", 0, message, (lost,), None)
        if lost and self._write(self._handler.format(notice)):
            self._reported += lost

    def _write(self, line: str) -> bool:
        """Write a line; return whether the file took it."""
        rest = f"{line}\n".encode(errors="replace")
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            return False
        return True


@contextmanager
def written_to(file: int, formatter: logging.Formatter) -> Iterator[logging.Handler]:
    """Return a handler whose lines a thread writes; wait at the end, END_SECONDS at most."""
    handler = BoundedQueueHandler(formatter)
    listener = LogListener(handler, file)
    listener.start()
    try:
        yield handler
    finally:
        end = threading.Thread(target=listener.stop, daemon=True)
        end.start()
        end.join(END_SECONDS)


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
    with written_to(sys.stdout.fileno(), formatter) as handler:
        logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
        yield


def _message(record: logging.LogRecord) -> str:
    return record.getMessage().rstrip()  # Python's warnings end in a line's end


def _trace(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


def _uncaught(raised: threading.ExceptHookArgs | sys.UnraisableHookArgs) -> None:
    log.critical("this is a bug", exc_info=raised.exc_value)
