"""Who is at the other end of a unix socket: what the kernel noted when it connected, unix(7)."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from starlette.types import Scope

from affinityd.ucred import credentials

KEY = "connection"  #: where a request's scope has it, among its `state`

#: kernel include/uapi/asm-generic/socket.h; Python has no name for it.
SO_PEERGROUPS = 59
MAX_GROUPS = 1024  #: bytes, the most that Python asks a socket for: 256 groups

GROUP = struct.Struct("I")


@dataclass(frozen=True)
class Peer:
    """A process as it was when it connected; numbers are those of the daemon's namespaces."""

    pid: int  #: 0 where its pid namespace is not ours, nor below it
    uid: int
    groups: frozenset[int]  #: gids: its own and, where there are not too many, the others

    @property
    def is_of_ours(self) -> bool:
        """Whether its numbers are its own: a user that is not mapped here looks like nobody."""
        return self.pid > 0 and self.uid != _overflow_uid()


class Connection:
    """A connection, and who made it: that is looked up for the first who asks, and costs 6 µs."""

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        """Take what it goes over."""
        self._transport = transport

    @cached_property
    def peer(self) -> Peer | None:
        """Who connected; None over TCP."""
        return peer_of(self._transport.get_extra_info("socket"))


def peer_of_request(scope: Scope) -> Peer | None:
    """Return who sent a request; None where nobody knows."""
    connection = scope.get("state", {}).get(KEY)
    return connection.peer if isinstance(connection, Connection) else None


def peer_of(connection: Any) -> Peer | None:  # noqa: ANN401 - a socket, or uvloop's view of one
    """Return who connected; None where the kernel does not say, as over TCP."""
    if connection.family != socket.AF_UNIX:
        return None
    try:
        pid, uid, gid = credentials(connection)
    except OSError:
        return None
    groups = b""
    with suppress(OSError):  # a kernel before 4.13, or more groups than there is room for
        groups = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, MAX_GROUPS)
    return Peer(pid, uid, frozenset({gid, *(number for (number,) in GROUP.iter_unpack(groups))}))


@cache
def _overflow_uid() -> int:
    """Return who a user looks like that this user namespace does not know, user_namespaces(7)."""
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return 65534
