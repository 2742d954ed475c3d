"""The process at the other end of a connection, as the kernel noted it: unix(7)."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from functools import cache, cached_property
from typing import Any

from starlette.types import Scope

from affinityd.linux.files import SCARCE, present
from affinityd.linux.processes import Credentials, credentials, groups, parse_stat

KEY = "connection"  #: where a request's scope has it, among its `state`

#: The key by which connections are counted: a uid, or TCP for all over TCP.
CallerKey = int | str
TCP = "TCP"

#: Bytes of answers that wait in the kernel, of which it takes twice as much, socket(7): they are
#: the daemon's memory.
SEND_BUFFER = 8192

#: Bytes of a /proc/PID/cgroup: in each of a dozen hierarchies a path, of 4096 bytes at most.
MAX_MEMBERSHIP = 65536

#: kernel 6.5, include/uapi/asm-generic/socket.h; Python has no name for it.
SO_PEERPIDFD = 77


class PeerConnection:
    """A connection, and the process that made it."""

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        """Take its socket. Raises OSError if no file descriptor is left for the process."""
        self._socket = transport.get_extra_info("socket")
        #: Which process connected, and of which user; None over TCP.
        self.credentials = _accept(self._socket)
        told = self.credentials
        self.caller: CallerKey = TCP if told is None else told.uid
        self._start = None if told is None or has_peer_pidfd() else _start(told.pid)

    @cached_property
    def groups(self) -> frozenset[int]:
        """The gids of the process: its own and, where there are not too many, the others."""
        told = self.credentials
        return frozenset() if told is None else groups(self._socket, told.gid)

    def membership(self) -> bytes | None:
        """Return the /proc/PID/cgroup of the process now; None if it has ended.

        The file stays open: it is of that process, not of another that is given its pid. Raises
        OSError as above, and PermissionError where /proc hides the process.
        """
        try:
            return os.pread(self._membership, MAX_MEMBERSHIP, 0)
        except OSError as error:
            if error.errno in SCARCE or isinstance(error, PermissionError):
                raise
            return None

    def is_same_process(self) -> bool:
        """Whether the pid still is that of the process that connected. Raises OSError as above.

        Facts read of the pid before this call are then of that process.
        """
        if self.credentials is None:
            return False
        if not has_peer_pidfd():
            return self._start is not None and _start(self.credentials.pid) == self._start
        try:
            return not self._end.poll(0)  # as long as it lives its pid is no other's
        except OSError as error:
            if error.errno in SCARCE:
                raise
            return False  # it has ended, and its parent has noticed

    def close(self) -> None:
        """Close the files of the process. The next question opens them again."""
        self.__dict__.pop("_end", None)
        for name in ("_handle", "_membership"):
            if (file := self.__dict__.pop(name, None)) is not None:
                os.close(file)

    @cached_property
    def _membership(self) -> int:
        told = self.credentials
        return os.open(f"/proc/{told.pid if told else None}/cgroup", os.O_RDONLY)

    @cached_property
    def _handle(self) -> int:
        handle: int = self._socket.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
        return handle

    @cached_property
    def _end(self) -> select.poll:
        end = select.poll()
        end.register(self._handle, select.POLLIN)
        return end


@cache
def has_peer_pidfd() -> bool:
    """Return whether this kernel has a handle of the peer. Raises OSError without descriptors."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        try:
            os.close(ours.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD))
        except OSError as error:
            if error.errno in SCARCE:
                raise
            return False
    return True


def connection_of(scope: Scope) -> PeerConnection | None:
    """Return the connection of a request; None if it is not one of this daemon."""
    connection: PeerConnection | None = scope.get("state", {}).get(KEY)
    return connection


def _accept(accepted: Any) -> Credentials | None:  # noqa: ANN401 - a socket, or uvloop's view of one
    """Return the peer of a unix socket, and limit the kernel's buffer for it.

    None if the kernel does not know, as over TCP.
    """
    if accepted.family != socket.AF_UNIX:
        return None
    # uvloop's view of a socket takes another file for each question.
    same = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=accepted.fileno())
    try:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        return credentials(same)
    except OSError:
        return None
    finally:
        same.detach()


def _start(pid: int) -> int | None:
    """Return when a process began; None where it has ended, or /proc hides it."""
    try:
        stat = parse_stat(present(f"/proc/{pid}/stat"))
    except PermissionError:  # hidepid=, proc(5)
        return None
    return None if stat is None or stat.is_zombie else stat.start
