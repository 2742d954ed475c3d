"""A function in a daemon thread, which does not delay the process's end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def started(work: Callable[[], T]) -> Future[T]:
    """Return the result to come of `work`, or its exception."""
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # a caller that leaves does not end the thread

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result
