"""Whether a pid still is the process that connected: then what was read of it is true of that.

A process may end right after it connected, and its pid may be another's while it is read.
Sources: unix(7), pidfd_open(2), proc_pid_stat(5); SO_PEERPIDFD is kernel 6.5's, net/core/sock.c.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol, TypeVar

from affinityd.linux.files import SCARCE, present
from affinityd.linux.procstat import parse

#: kernel include/uapi/asm-generic/socket.h; Python has no name for it.
SO_PEERPIDFD = 77

R = TypeVar("R")


class Proof(Protocol):
    """Knows the process again that made one connection."""

    def holds(self, read: Callable[[], R]) -> R | None:
        """Return what is read of the pid; None where it may have been another's by then.

        Raises OSError where there is too little of something (SCARCE) to tell.
        """


class Pidfd:
    """By the kernel's own handle: while the process lives, its pid is nobody else's."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - a socket, or uvloop's view of one
        """Take the connection. No file is held for as long as that lasts."""
        self._connection = connection

    def holds(self, read: Callable[[], R]) -> R | None:
        """Return what is read, if the process lives after it."""
        try:
            process = self._connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
        except OSError as error:
            if error.errno in SCARCE:
                raise
            return None  # it has ended, and its parent has noticed
        try:
            found = read()
            return None if _has_ended(process) else found
        finally:
            os.close(process)


class StartTime:
    """By when it began, which is noted as it connects: with the pid that names it for good.

    That the pid was another's already then, this cannot tell; the users of the two can.
    """

    def __init__(self, pid: int, uid: int) -> None:
        """Take the pid of a process that has just connected, and its effective user."""
        self._pid = pid
        self._uid = uid
        self._trouble: OSError | None = None
        try:
            self._start = _start(pid)
        except OSError as error:
            self._start, self._trouble = None, error

    def holds(self, read: Callable[[], R]) -> R | None:
        """Return what is read, if the pid is of the same process and user after it."""
        if self._trouble is not None:
            raise self._trouble
        if self._start is None:
            return None
        found = read()
        is_it = _start(self._pid) == self._start and _effective_uid(self._pid) == self._uid
        return found if is_it else None


@cache
def has_pidfd() -> bool:
    """Return whether this kernel has SO_PEERPIDFD. Raises OSError where that cannot be tried."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        try:
            os.close(ours.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD))
        except OSError as error:
            if error.errno in SCARCE:
                raise
            return False
    return True


def _has_ended(process: int) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))


def _start(pid: int) -> int | None:
    """Return when a process began; None where it has ended. Raises OSError as `present` does."""
    stat = parse(_own(pid, "stat"))
    return None if stat is None or stat.is_zombie else stat.start


def _effective_uid(pid: int) -> int | None:
    """Return the second number of `Uid:` in /proc/PID/status. Raises OSError as `present` does."""
    lines = (_own(pid, "status") or b"").split(b"\n")
    found = (line.split() for line in lines if line.startswith(b"Uid:"))
    return next((int(words[2]) for words in found), None)


def _own(pid: int, name: str) -> bytes | None:
    try:
        return present(f"/proc/{pid}/{name}")
    except PermissionError:  # hidepid=, proc(5)
        return None
