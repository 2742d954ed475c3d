"""Log lines: one a record, as text for people and the journal or as JSON, no control characters."""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import datetime, timezone

from affinityd.daemon.log_writer import LogWriter
from affinityd.text import one_line

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
        told = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        if trace := _trace(record):
            told["exception"] = trace
        # The one control character that JSON lets pass.
        return json.dumps(told).replace("\x7f", "\\u007f")


def configure(log_format: str) -> None:
    """Send to stdout, as "text" or "json", every log record, warning and exception of a thread."""
    handler = _handler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.raiseExceptions = False  # a log that takes no more lines is no reason for others
    # What a client does wrong it is told; a line for each would let it fill the log.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.captureWarnings(True)  # noqa: FBT003 - it takes it by position only
    threading.excepthook = sys.unraisablehook = _uncaught


def _handler() -> logging.Handler:
    """Return what writes to stdout; to nowhere, where that is closed."""
    return logging.NullHandler() if sys.stdout is None else LogWriter(sys.stdout.fileno())


def _message(record: logging.LogRecord) -> str:
    return record.getMessage().rstrip()  # Python's warnings end in a line's end


def _trace(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


def _uncaught(told: threading.ExceptHookArgs | sys.UnraisableHookArgs) -> None:
    log.critical("this is a bug", exc_info=told.exc_value)
