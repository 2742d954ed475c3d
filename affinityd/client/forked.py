"""A function with a deadline: a forked child runs it, and is killed if it takes longer.

It uses no signal and no timer of the process, which may execute another program. Only for
processes of one thread: in a child, locks of other threads stay closed for ever, and a fork harms
the pages of a training process that drivers and network adapters have registered.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` takes half as long as Python's start
import _socket
import marshal
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from affinityd import errors
from affinityd.client.http import received

if TYPE_CHECKING:
    T = TypeVar("T")

LINGER = 0.05  #: seconds that a killed child is waited for; one that waits for a device stays
PAUSE = 0.0002  #: seconds between two looks whether it has ended


def run_forked(function: Callable[[], T], deadline: float) -> T:
    """Return a function's result: None, numbers, text, and tuples, lists and dicts of them.

    `deadline` is of time.monotonic. Raises TimeoutError; the AffinityError that the function
    raises, and of another exception of its, an AffinityError that names it; OSError where there may
    be no more processes.
    """
    answers, pipe = _socket.socketpair()
    is_late = True
    try:
        child = os.fork()
        if child == 0:
            _run(function, pipe, deadline)
        pipe.close()
        try:
            answer = b"".join(received(answers, deadline))
            is_late = False
        finally:
            _end(child, kill=is_late)
    finally:
        answers.close()
        pipe.close()
    if not answer:
        raise errors.AffinityError("the planning process ended without an answer")
    failure, result = marshal.loads(answer)  # noqa: S302 - this process's child wrote it
    if failure is None:
        found: T = result
        return found
    kind = getattr(errors, failure, None)
    raise kind(result) if kind else errors.AffinityError(f"{failure}: {result}")


def _let_go(pipe: int, deadline: float) -> None:
    """Close the process's output in the child, which may be stuck, and end it at its deadline.

    Otherwise a reader of the job's output would wait for a child that a device blocks.
    """
    _signal.signal(_signal.SIGALRM, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGALRM])
    _signal.setitimer(_signal.ITIMER_REAL, max(deadline - time.monotonic(), LINGER) + LINGER)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in {0, 1, 2} - {pipe, nowhere}:
        os.dup2(nowhere, stream)


def _run(function: Callable[[], object], pipe: _socket.socket, deadline: float) -> NoReturn:
    """Write a function's result, or its exception, and end."""
    answer: Any
    try:
        try:
            _let_go(pipe.fileno(), deadline)
            answer = None, function()
        except Exception as error:  # noqa: BLE001 - the parent raises it
            answer = type(error).__name__, str(error)
        pipe.sendall(marshal.dumps(answer))
    finally:
        os._exit(0)


def _end(child: int, *, kill: bool) -> None:
    """Reap a child that ends, or is killed."""
    try:
        if kill:
            os.kill(child, _signal.SIGKILL)
        limit = time.monotonic() + LINGER
        while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < limit:
            time.sleep(PAUSE)
    except (ProcessLookupError, ChildProcessError):  # SIGCHLD is ignored: the kernel reaped it
        pass
