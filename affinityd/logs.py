"""Log lines: one a record, as text for people and the journal or as JSON, no control characters."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone

from affinityd.errors import one_line


class TextFormatter(logging.Formatter):
    """LEVEL message; the time is the journal's business."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        return f"{record.levelname.lower()}: {one_line(_message(record))}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        return json.dumps(
            {
                "time": moment.isoformat(timespec="milliseconds"),
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": _message(record),
            }
        )


def configure(log_format: str) -> None:
    """Send every log record to stderr, as "text" or "json"."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    # What a client does wrong it is told; a line for each would let it fill the log.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)


def _message(record: logging.LogRecord) -> str:
    if not record.exc_info:
        return record.getMessage()
    trace = logging.Formatter().formatException(record.exc_info)
    lines = (line.strip() for line in trace.splitlines())
    return f"{record.getMessage()}: {' | '.join(lines)}"
