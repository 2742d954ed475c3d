"""Log lines on their way to a file that may take none for a while: nobody waits for that."""

from __future__ import annotations

import logging
import os
import select
import threading
from queue import SimpleQueue

MOST_LINES = 1000  #: that wait; what is logged beyond them is lost, and counted
END_SECONDS = 1.0  #: how long the end of the process waits for the file

log = logging.getLogger(__name__)


class LogWriter(logging.Handler):
    """Writes lines in a thread of its own, and says how many were lost once there is room again.

    A pipe whose reader has stopped, or a full disk, costs lines and holds up nobody.
    """

    def __init__(self, file: int) -> None:
        """Take the number of the file to write to."""
        super().__init__()
        self._file = file
        # Of the queues only this one bears a finaliser that logs while a line is being put.
        self._lines: SimpleQueue[bytes | threading.Event | None] = SimpleQueue()
        self._dropped = 0  # lines that found no room
        self._failed = 0  # lines that could not be written
        self._told = 0  # how many of both the log has told of
        self._torn = False  # the file ends in the middle of a line
        threading.Thread(target=self._work, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Have a record written."""
        if self._lines.qsize() >= MOST_LINES:
            self._dropped += 1
            return
        try:
            self._lines.put(self._line(record))
        except Exception:  # noqa: BLE001 - logging's own way with what it cannot format
            self.handleError(record)

    def flush(self) -> None:
        """Wait until all is written, but not for ever: logging does so at the process's end."""
        written = threading.Event()
        self._lines.put(written)
        written.wait(END_SECONDS)

    def close(self) -> None:
        """Write what waits, and no more."""
        super().close()
        self._lines.put(None)

    def _line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="replace")

    def _work(self) -> None:
        while line := self._lines.get():
            if isinstance(line, threading.Event):
                self._tell_of_the_lost()
                line.set()
            elif not self._write(line):
                self._failed += 1
            elif self._lines.empty():
                self._tell_of_the_lost()

    def _tell_of_the_lost(self) -> None:
        lost = self._dropped + self._failed
        if lost == self._told:
            return
        notice = {
            "name": log.name,
            "levelno": logging.WARNING,
            "levelname": "WARNING",
            "msg": "%d lines are missing above: the log took no more",
            "args": (lost - self._told,),
        }
        if self._write(self._line(logging.makeLogRecord(notice))):
            self._told = lost

    def _write(self, line: bytes) -> bool:
        """Write a line, however long that takes; return whether the file took it."""
        rest = b"\n" + line if self._torn else line
        whole = len(rest)
        try:
            while rest:
                rest = rest[self._written(rest) :]
        except OSError:
            self._torn = self._torn or len(rest) < whole
            return False
        self._torn = False
        return True

    def _written(self, data: bytes) -> int:
        """Return how many bytes the file took."""
        try:
            return os.write(self._file, data)
        except BlockingIOError:  # somebody else, who has it open too, does not want to wait
            room = select.poll()
            room.register(self._file, select.POLLOUT)
            room.poll()
            return 0
