"""Work off the event loop that nobody waits for at the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def in_background(work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises, from a thread of its own.

    Unlike asyncio.to_thread's, the thread does not hold up the process's end: a driver may hang
    whoever asks it for longer than a stop may take.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
            _tell(loop, done, partial(done.set_exception, error))
        else:
            _tell(loop, done, partial(done.set_result, result))

    threading.Thread(target=run, daemon=True).start()
    return await done


def _tell(
    loop: asyncio.AbstractEventLoop, done: asyncio.Future[T], tell: Callable[[], None]
) -> None:
    with suppress(RuntimeError):  # the loop has ended: nobody waits
        loop.call_soon_threadsafe(lambda: None if done.cancelled() else tell())
