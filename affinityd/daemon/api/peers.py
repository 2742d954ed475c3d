"""Connections and the processes at their other ends: user, CPUs, and access to /audit.

The kernel notes which process connected: unix(7). The mask of its main thread and the cpuset of its
cgroup are read at the time of the request. Sources: sched_getaffinity(2), cgroups(7) for
/proc/PID/cgroup, pid_namespaces(7).
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from ipaddress import ip_address
from typing import Any

from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from affinityd.audit.document import ALL, COUNTS
from affinityd.cpuset import parse_list
from affinityd.errors import BusyError
from affinityd.linux.cgroup import Cgroups, mask_of
from affinityd.linux.files import present
from affinityd.linux.processes import (
    ROOT,
    Credentials,
    credentials,
    groups,
    overflow_uid,
    parse_stat,
    status_of,
)
from affinityd.request.resolve import Caller

KEY = "peer"  #: key of the peer in the `state` of a request's scope

MOST_OF_ONE = 512  #: connections of one user; all TCP connections count as one user's

MOST_RECEIVED = 65536  #: bytes of one request; its query has at most 49,152
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n"
    b"content-type: text/plain\r\ncontent-length: 40\r\n\r\n"
    b"a request has 65,536 characters at most\n"
)


class Peer:
    """The process that made a connection to a unix socket."""

    def __init__(self, accepted: socket.socket, credentials: Credentials) -> None:
        """Take the connection's socket, and the process that the kernel noted."""
        self._socket = accepted
        self.credentials = credentials
        self.start = _start(credentials.pid)

    @property
    def is_there(self) -> bool:
        """Whether the process still runs: another one may have its pid now. Raises OSError."""
        return self.start is not None and _start(self.credentials.pid) == self.start

    @cached_property
    def groups(self) -> frozenset[int]:
        """The gids of the process: its own and, if the kernel could tell them, the others."""
        return groups(self._socket, self.credentials.gid)


def peer_of(accepted: socket.socket) -> Peer | None:
    """Return the peer of a connection; None over TCP.

    Raises OSError if its /proc files cannot be read now, such as for lack of file descriptors.
    """
    if accepted.family != socket.AF_UNIX:
        return None
    return Peer(accepted, credentials(accepted))


def peer_of_request(scope: Scope) -> Peer | None:
    """Return the peer of a request; None over TCP."""
    peer: Peer | None = scope.get("state", {}).get(KEY)
    return peer


def _start(pid: int) -> int | None:
    """Return when a process began; None where it has ended, or /proc hides it."""
    try:
        stat = parse_stat(present(f"/proc/{pid}/stat"))
    except PermissionError:  # hidepid=, proc(5)
        return None
    if stat is None or stat.is_zombie:
        return None
    return stat.start


class Connections:
    """Each user's connections; one user may have a quarter of the daemon's files.

    All connections over TCP count as one user's. Beyond the limit the oldest connection is closed,
    so idle connections cannot keep requests out.
    """

    def __init__(self, count_closed: Callable[[], None]) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        spare = 96  # files that the daemon needs besides connections
        self._most = min(MOST_OF_ONE, max((soft - spare) // 4, 1))
        self._of_user = defaultdict[int | None, dict[PeerProtocol, None]](dict)  # oldest first
        self._count_closed = count_closed

    def add(self, connection: PeerProtocol) -> None:
        """Note a new connection."""
        others = self._of_user[connection.user]
        if len(others) >= self._most:
            self._count_closed()
            oldest = next(iter(others))
            del others[oldest]
            oldest.transport.abort()  # close() would wait for a client that never reads its answer
        others[connection] = None

    def remove(self, connection: PeerProtocol) -> None:
        """Forget a connection."""
        connections = self._of_user[connection.user]
        connections.pop(connection, None)
        if not connections:
            del self._of_user[connection.user]


class PeerProtocol(HttpToolsProtocol):
    """One connection: uvicorn's protocol, with the peer in the scope of each request.

    The connection is closed if a request has more than MOST_RECEIVED bytes, or is sent before the
    last one is answered, which no client of ours does: uvicorn limits neither.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._connections = connections
        self.user: int | None = None  #: None: a connection over TCP
        self._received = 0  #: bytes since the last request was complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin with a new connection, and note its peer."""
        super().connection_made(transport)
        # uvloop's socket object opens another file for each query.
        view = transport.get_extra_info("socket")
        self._accepted = socket.socket(view.family, view.type, view.proto, fileno=view.fileno())
        try:
            peer = peer_of(self._accepted)
        except OSError:  # a caller at the unix socket that is not known
            peer = None
            transport.abort()
        self.user = None if peer is None else peer.credentials.uid
        self.app_state = {**self.app_state, KEY: peer}
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request. The parser would keep and copy all that is sent."""
        self._received += len(data)
        if self._received <= MOST_RECEIVED:
            super().data_received(data)
        elif not self.transport.is_closing():
            if not self._is_answering:
                self.transport.write(TOO_LARGE)
            self.transport.close()

    def on_headers_complete(self) -> None:
        """Begin to answer a request."""
        if self._is_answering:
            self.transport.close()
            raise ValueError  # ends the parser, which would otherwise read all that was sent
        if not self.transport.is_closing():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Count the bytes of the next request from 0."""
        self._received = 0
        super().on_message_complete()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer also a client that has closed its side of the connection after its request."""
        if self._is_answering:
            self.cycle.keep_alive = False
        return self._is_answering

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection that has ended."""
        super().connection_lost(exc)
        self._accepted.detach()
        self._connections.remove(self)


def caller_of(peer: Peer | None) -> Caller | None:
    """Return the CPUs of the process that made a connection; None if not known.

    Raises BusyError if no file can be opened to read them.
    """
    if peer is None:
        return None
    pid = peer.credentials.pid
    if pid <= 0 or not _sees_own_pids():  # a caller in a pod: its commands send their CPUs
        return None
    try:
        caller = _caller(pid)
        is_same = peer.is_there  # otherwise another process has the pid by now
    except OSError as error:
        raise BusyError(
            f"the caller cannot be identified now: {error.strerror}; try again in a moment"
        ) from None
    if not is_same:
        return None
    return caller


@cache
def _sees_own_pids() -> bool:
    """Return whether /proc has the pid numbers that a socket's peer credentials have."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())  # noqa: PTH115
    except OSError:
        return False


def _caller(pid: int) -> Caller | None:
    """Return the current CPUs of a pid's process; None if /proc hides it. Raises OSError."""
    try:
        mask = mask_of(pid)
        membership = present(f"/proc/{pid}/cgroup")
    except PermissionError:  # hidepid=, proc(5)
        return None
    if mask is None or membership is None:
        return None
    try:
        for file in _cpuset_files(membership):
            if cpus := (present(file) or b"").strip():
                cpuset = parse_list(cpus.decode())  # the process may have changed its cgroup
                return Caller(mask & cpuset or cpuset, cpuset)
    except PermissionError:  # its cgroup is not readable; the mask is within the cpuset
        return Caller(mask, mask)
    return Caller(mask)


@lru_cache(maxsize=256)
def _cpuset_files(membership: bytes) -> tuple[str, ...]:
    """Return a cgroup's cpuset files, the nearest first; cached, as it reads all mounts."""
    return tuple(Cgroups(os.fsdecode(membership)).cpuset_files())


def is_foreign(host: str) -> bool:
    """Whether a Host header has a site's name: neither an IP address nor a name without a dot.

    A site can have its name resolve to a user's port forwarding: a browser then acts as that user.
    """
    name, _, port = host.rpartition(":")
    if not port.isdigit():
        name = host
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return "." in name
    return False


def reader_of(peer: Peer | None, admin_group: int | None) -> str:
    """Return the document that a caller may see: ALL for root and the admin group, else COUNTS.

    Over TCP and from other namespaces no caller counts as root or a member. Nor does a process that
    has ended: its child may use its connection.
    """
    if peer is None:
        return COUNTS
    pid = peer.credentials.pid
    uid = peer.credentials.uid
    if pid <= 0 or uid == overflow_uid():
        return COUNTS
    if uid != ROOT and admin_group not in peer.groups:
        return COUNTS
    # A process in a pid namespace below that of /proc, proc_pid_status(5), is in some container.
    is_of_node = len(status_of(pid, "NSpid").split()) == 1
    with suppress(OSError):  # no file can be opened to read this
        if is_of_node and peer.is_there:
            return ALL
    return COUNTS
