"""A process for the daemon's long computations: no plan waits for an interpreter that makes them.

It is forked before the daemon has threads, and ends with the daemon. One that has ended ends the
daemon, too: it can be forked no more.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from traceback import format_exc
from typing import Any, Generic, TypeVar

from affinityd.errors import FatalError
from affinityd.linux.syscalls import end_with

T = TypeVar("T")


class Worker(Generic[T]):
    """A process with an object, whose methods are called there, one after the other."""

    def __init__(self, task: str, make: Callable[[], T]) -> None:
        """Fork it; `make` returns the object, there, at the first call. `task` is for messages."""
        self._task = task
        self._turn = threading.Lock()
        self._pipe, theirs = Pipe()
        daemon = os.getpid()
        if os.fork() == 0:
            try:
                self._pipe.close()
                with suppress(OSError):  # without it, a process that hangs ends later
                    end_with(daemon)
                _serve(theirs, make)
            finally:
                os._exit(0)
        theirs.close()

    def call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - what that returns
        """Return the result of a method of the object; its log records are logged here.

        Raises RuntimeError for a method that failed, with its traceback.
        """
        try:
            with self._turn:
                self._pipe.send((method, arguments))
                answer, traceback, records = self._pipe.recv()
        except (OSError, EOFError):
            raise FatalError(f"the process that {self._task} has ended") from None
        for record in records:
            logging.getLogger(record.name).handle(record)
        if traceback is not None:
            raise RuntimeError(traceback)
        return answer


class Records(logging.Handler):
    """Keeps what is logged, as it can be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = list[logging.LogRecord]()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, its message made."""
        record.msg, record.args = record.getMessage(), None
        self.kept.append(record)


def _serve(pipe: Connection, make: Callable[[], Any]) -> None:
    """Answer one call after the other, until the daemon has ended."""
    gc.enable()  # which the daemon's start has disabled
    for number in (signal.SIGINT, signal.SIGTERM):  # the daemon takes them, and ends first
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(handlers=[records := Records()], level=logging.INFO, force=True)
    made = None
    with suppress(OSError, EOFError):
        while True:
            answer, traceback, records.kept = None, None, []
            method, arguments = pipe.recv()
            try:
                made = made or make()
                answer = getattr(made, method)(*arguments)
            except Exception:  # noqa: BLE001 - the daemon logs it
                traceback = format_exc()
            pipe.send((answer, traceback, records.kept))
