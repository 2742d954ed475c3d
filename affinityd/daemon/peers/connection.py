"""Who is at the other end of a unix socket: what the kernel noted when it connected, unix(7)."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from starlette.types import Scope

from affinityd.daemon.peers.caller_key import CallerKey
from affinityd.daemon.peers.pid_identity import Pidfd, Proof, StartTime, has_pidfd
from affinityd.linux.peercred import Credentials, credentials

KEY = "connection"  #: where a request's scope has it, among its `state`

#: kernel include/uapi/asm-generic/socket.h; Python has no name for it.
SO_PEERGROUPS = 59
MAX_GROUPS = 1024  #: bytes, the most that Python asks a socket for: 256 groups

GROUP = struct.Struct("I")

#: Bytes of answers that wait in the kernel, of which it takes twice as much, socket(7): they are
#: the daemon's memory.
SEND_BUFFER = 8192


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


class PeerConnection:
    """A connection, and who made it."""

    def __init__(
        self, transport: asyncio.BaseTransport, *, by_pidfd: Callable[[], bool] = has_pidfd
    ) -> None:
        """Take what it goes over, and whether the kernel has handles of those who connect."""
        self._socket = transport.get_extra_info("socket")
        self.has_gone = False  #: nobody is left who would take an answer
        self.turn: asyncio.Future[None] | None = None  #: what its request waits for, or waited
        #: Which process connected, and of which user; None over TCP.
        self.credentials = _begin(self._socket)
        #: By what the process that connected is known again.
        self.proof: Proof = Pidfd(self._socket) if by_pidfd() else self._start_time

    @cached_property
    def whose(self) -> CallerKey:
        """Whom it counts as: a uid or, over TCP, an address."""
        if self.credentials is not None:
            return self.credentials.uid
        try:
            return network(self._socket.getpeername()[0])
        except (OSError, IndexError, ValueError):  # it has gone; the kernel says of whom no more
            return ""

    def leave(self) -> None:
        """Note that it has gone; what waits on its behalf goes on, and finds that out."""
        self.has_gone = True
        if self.turn is not None and not self.turn.done():
            self.turn.set_result(None)

    @cached_property
    def peer(self) -> Peer | None:
        """The same, with all its groups."""
        told = self.credentials
        return None if told is None else Peer(told.pid, told.uid, _groups(self._socket, told.gid))

    @property
    def _start_time(self) -> StartTime:
        told = self.credentials
        return StartTime(0, 0) if told is None else StartTime(told.pid, told.uid)


def network(address: str) -> str:
    """Return what counts as one caller over TCP: who has one of its addresses may have all.

    Every user of a machine has all of its loopback's, every IPv6 host those of a /64, RFC 4291.
    Raises ValueError.
    """
    it = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(it, ipaddress.IPv6Address) and it.ipv4_mapped is not None:
        it = it.ipv4_mapped
    if it.is_loopback:
        return "localhost"
    return str(it) if it.version == 4 else str(ipaddress.ip_network((int(it), 64), strict=False))  # noqa: PLR2004


def connection_of(scope: Scope) -> PeerConnection | None:
    """Return what a request came over; None where it was no connection of ours."""
    connection = scope.get("state", {}).get(KEY)
    return connection if isinstance(connection, PeerConnection) else None


def peer_of_request(scope: Scope) -> Peer | None:
    """Return who sent a request; None where nobody knows."""
    connection = connection_of(scope)
    return None if connection is None else connection.peer


def _begin(accepted: Any) -> Credentials | None:  # noqa: ANN401 - a socket, or uvloop's view of one
    """Return who connected over a unix socket, and have the kernel keep little for him.

    None where it does not say, as over TCP.
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


def _groups(connection: Any, own: int) -> frozenset[int]:  # noqa: ANN401 - as above
    groups = b""
    with suppress(OSError):  # a kernel before 4.13, or more groups than there is room for
        groups = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, MAX_GROUPS)
    return frozenset({own, *(number for (number,) in GROUP.iter_unpack(groups))})


@cache
def _overflow_uid() -> int:
    """Return who a user looks like that this user namespace does not know, user_namespaces(7)."""
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return 65534
