"""Runs a function in a fork of this process, which may hang or crash without harm to it.

No interpreter starts and nothing is imported: that is most of what a child costs otherwise. Only
for a process of one thread, fork(2), that holds nothing which a stuck child must not hold.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from affinityd.discovery.nvml.subprocess import GRACE, ChildError, check_stuck, hung, said_of
from affinityd.linux.children import exit_status
from affinityd.linux.files import numbered

CHUNK = 65536
OUT = 3  #: the number of the pipe in the child, behind its streams


@dataclass(frozen=True)
class Fork:
    """A forked child."""

    pid: int
    pipe: int  #: to which it writes

    def poll(self) -> int | None:
        """Return its status, negative for a signal; None: it has not ended."""
        return exit_status(self.pid)

    def read(self, deadline: float) -> bytes:
        """Return the whole output. Raises TimeoutError; `deadline` is of time.monotonic."""
        ready, found = select.poll(), b""
        ready.register(self.pipe, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            if ready.poll(left * 1000):
                part = os.read(self.pipe, CHUNK)
                if not part:
                    return found
                found += part
        raise TimeoutError

    def ended(self) -> int | None:
        """Return its status; None: it does not end within the grace."""
        limit = time.monotonic() + GRACE
        while (status := self.poll()) is None and time.monotonic() < limit:
            time.sleep(0.001)
        return status


def forked_output(work: Callable[[], str], timeout: float) -> str:
    """Return the text that `work` returns in a fork.

    Takes `timeout` seconds and a little grace at most. Raises ChildError as `subprocess.output`.
    """
    check_stuck()
    child = _start(work, timeout)
    try:
        found = child.read(time.monotonic() + timeout)
    except TimeoutError:
        _kill(child)
        if child.ended() is None:
            hung(child)
        raise ChildError(f"did not answer within {timeout:g} s") from None
    finally:
        os.close(child.pipe)
    status = child.ended()
    if status is None:
        hung(child)
    elif status:
        raise ChildError(said_of(status, found.decode(errors="replace")))
    return found.decode(errors="replace")


def _start(work: Callable[[], str], timeout: float) -> Fork:
    ours, theirs = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            _run(work, theirs, timeout)
    except OSError as error:
        os.close(ours)
        raise ChildError(f"could not be asked: {error}") from error
    finally:
        os.close(theirs)
    return Fork(pid, ours)


def _run(work: Callable[[], str], pipe: int, timeout: float) -> NoReturn:
    """Be the child: write what `work` returns, or the reason why it failed, and end."""
    status = 1
    try:
        _let_go(pipe, timeout)
        try:
            text, status = work(), 0
        except Exception as error:  # noqa: BLE001 - the parent raises it
            text = f"{type(error).__name__}: {error}"
        with os.fdopen(OUT, "w", encoding="utf-8", errors="replace") as out:
            out.write(text)
    finally:
        os._exit(status)


def _let_go(pipe: int, timeout: float) -> None:
    """Keep no file but the pipe, be a process group, and end some time after the timeout."""
    os.setsid()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, timeout + GRACE)
    nowhere = os.open(os.devnull, os.O_RDWR)
    kept = os.dup(pipe)  # beyond the numbers that are overwritten here
    last = numbered("/proc/self/fd")[-1]  # the limit may be lower, or a thousand million
    for stream in range(OUT):
        os.dup2(nowhere, stream)
    os.dup2(kept, OUT)
    os.closerange(OUT + 1, last + 1)


def _kill(child: Fork) -> None:
    for kill in (os.killpg, os.kill):  # it may not be a group yet
        with suppress(ProcessLookupError):
            kill(child.pid, signal.SIGKILL)
