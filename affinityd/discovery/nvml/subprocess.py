"""Runs a function in a child process that may hang or crash without harm to its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Protocol

#: Seconds for a killed child to end. One that a driver holds in the kernel stays longer.
GRACE = 1.0

#: Isolated (-I), so neither the environment nor the working folder brings code into the child; it
#: imports from where its parent does, be that an installation or a checkout. The timer ends a child
#: that hangs although its parent has ended. A driver library's stdout goes to stderr.
CODE = (
    "import os, signal, sys; signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1])); "
    "sys.stdout = open(os.dup(1), 'w', encoding='utf-8', errors='replace'); os.dup2(2, 1); "
    "sys.path[:] = sys.argv[2:]; from {module} import {function}; {function}()"
)


class Child(Protocol):
    """A process that this one has started."""

    @property
    def pid(self) -> int:
        """Its pid."""

    def poll(self) -> int | None:
        """Return its exit status; None: it has not ended."""


#: Children that could not be ended, by all callers: each would leave another.
_stuck: set[Child] = set()


class ChildError(Exception):
    """A child that did not do its work; one line that begins with a verb."""


def output(module: str, function: str, timeout: float) -> str:
    """Call `module.function()` in a child and return its output.

    Takes `timeout` seconds and a little grace at most. Raises ChildError where the child cannot be
    started, hangs (it is killed, with all that it started), crashes, or ends with a failure; and at
    once, while an earlier child hangs and cannot be killed.
    """
    check_stuck()
    child = _start(module, function, timeout)
    try:
        printed, complaint = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise ChildError(f"did not answer within {timeout:g} s") from error
    finally:
        _end(child)
    if child.returncode:
        raise ChildError(said_of(child.returncode, complaint))
    return printed


def check_stuck() -> None:
    """Raise ChildError while an earlier child hangs and cannot be killed."""
    for earlier in tuple(_stuck):
        if earlier.poll() is None:
            raise ChildError(f"still hangs in an earlier query, in process {earlier.pid}")
        _stuck.discard(earlier)


def hung(child: Child) -> None:
    """Start no other while this one, which was killed, has not ended."""
    _stuck.add(child)


def said_of(status: int, complaint: str) -> str:
    """Return how a child ended that did not succeed."""
    if status < 0:
        return f"crashed: {signal.strsignal(-status)}"
    return f"failed: {complaint.strip().rpartition(chr(10))[2] or f'exit status {status}'}"


def _start(module: str, function: str, timeout: float) -> subprocess.Popen[str]:
    code = CODE.format(module=module, function=function)
    own_end = str(timeout + GRACE)
    try:
        return subprocess.Popen(  # noqa: S603  this very interpreter, with the code above
            [sys.executable, "-I", "-c", code, own_end, *map(os.path.abspath, sys.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # a process group, to be killed as one
        )
    except OSError as error:
        raise ChildError(f"could not be asked: {error}") from error


def _end(child: subprocess.Popen[str]) -> None:
    """Kill a child that was not waited for, and its children; wait, but not for ever."""
    if child.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            hung(child)
    for stream in filter(None, (child.stdout, child.stderr)):
        stream.close()
