"""The daemon's sockets, and uvicorn's servers on them: for the whole API, and for plans only.

Sockets are bound before a server starts, so that errors are reported at once.

Another process at the unix socket ends the start. One at a TCP address does not, as any user may
have started it: jobs use the unix socket.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from affinityd.config.settings import Settings
from affinityd.daemon.api.peers import KEY, peer_of
from affinityd.daemon.state.background import until_multiple
from affinityd.errors import FatalError, ListenError
from affinityd.linux.processes import credentials

log = logging.getLogger(__name__)

BACKLOG = 2048
WRITABLE_BY_ALL = 0o666  #: the job of every user of the node must reach the daemon
CHECK_SECONDS = 2.0  #: how often the socket's file is looked for, with the watcher's checks
DRAIN_SECONDS = 5  #: how long requests that are under way at SIGTERM may take
SPARE_FILES = 96  #: files that the daemon needs besides connections
MOST_OF_ONE = 512  #: connections at once of one user; all over TCP count as one
TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"Too busy: this user has the largest allowed number of connections open; close some\n"
)
#: How many connections are taken in a turn of the loop. libuv takes one a socket, and before the
#: next one answers every request: the last ones of many would wait for all the others.
TAKEN_AT_ONCE = 8


@dataclass(frozen=True)
class UnixListener:
    """A listening unix socket, and the file that leads to it."""

    path: Path
    socket: socket.socket
    file: tuple[int, int]  #: its device and inode

    def is_reachable(self) -> bool:
        """Whether the path leads here: files under /run are cleaned away, and replaced."""
        try:
            status = self.path.lstat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.file

    def close(self) -> None:
        """Stop listening; the path goes too, unless another process's socket is there."""
        if self.is_reachable():
            self.path.unlink(missing_ok=True)
        self.socket.close()


@dataclass(frozen=True)
class Listeners:
    """The sockets of the whole API, and those for plans only."""

    unix: UnixListener
    tcp: Sequence[socket.socket]
    plan: Sequence[socket.socket]

    def __str__(self) -> str:
        """Return where they listen."""
        tcp = "".join(", {}:{}".format(*it.getsockname()) for it in self.tcp)
        plan = "".join(", only plans on {}:{}".format(*it.getsockname()) for it in self.plan)
        return f"on {self.unix.path}{tcp}{plan}"


@contextmanager
def listening(settings: Settings) -> Iterator[Listeners]:
    """Listen on the addresses of the settings. Raises ListenError, before anything is served.

    If another process listens at a TCP address, that address is skipped, with a line in the log.
    """
    unix = listen_unix(Path(settings.socket))
    try:
        tcp = _listen_tcp("listen", settings.listen)
        plan = _listen_tcp("listen-plan", settings.listen_plan, everything=tcp)
        yield Listeners(unix, tcp, plan)
    finally:
        unix.close()


def _listen_tcp(
    setting: str, address: tuple[str, int] | None, everything: Sequence[socket.socket] = ()
) -> list[socket.socket]:
    """Listen at an address of the settings, if that is free; `everything` listens elsewhere."""
    if address is None:
        return []
    host, port = address
    remedy = f"give another by --{setting} HOST:PORT, or none"
    try:
        return [_bound(host, port)]
    except OSError as error:
        line = f"{setting}: {host}:{port}: {error.strerror}; {remedy}"
        if error.errno != errno.EADDRINUSE:
            raise ListenError(line) from None
    except UnicodeError:  # from a name that can be no host's
        raise ListenError(f"{setting}: {host}:{port}: not a host name; {remedy}") from None
    if any(it.getsockname()[1] == port for it in everything):
        raise ListenError(f"{setting}: {host}:{port} is the address of the whole API; {remedy}")
    log.warning("%s; it is tried again at the next start; everything else is served", line)
    return []


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address. Raises OSError; UnicodeError."""
    family, kind, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    # The protocol is named because asyncio sets TCP_NODELAY only where it is.
    listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def listen_unix(path: Path) -> UnixListener:
    """Listen on a path that every user can reach. A stale socket is taken over.

    Raises ListenError for a socket of another process, which is named, and for a folder that
    is not writable.
    """
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)  # another daemon may make it, too
            path.parent.chmod(0o755)  # independent of the umask
        _take(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(os.fspath(path))
        path.chmod(WRITABLE_BY_ALL)
        listener.listen(BACKLOG)
        status = path.stat()
    except OSError as error:
        cause = error.strerror or error  # a path that is too long has no number
        raise ListenError(f"socket: {path}: {cause}; give another by --socket") from None
    return UnixListener(path, listener, (status.st_dev, status.st_ino))


def _take(path: Path) -> None:
    """Remove a socket that no process listens on. Raises ListenError for anything else; OSError."""
    with suppress(FileNotFoundError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ListenError(
                f"socket: {path} exists and is not a socket; give another by --socket"
            )
        probe.settimeout(0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:  # unix(7): its queue is full
            holder = "a process that accepts no connection"
        else:
            pid = credentials(probe).pid
            holder = f"process {pid}" if pid > 0 else "a process that is not visible here"
        raise ListenError(f"socket: {path}: {holder} listens there already; stop it first")


class Connections:
    """Counts each user's connections; one user may have a quarter of the daemon's files."""

    def __init__(self, refused: Callable[[], None]) -> None:
        """Take the counter of refused connections."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = min(MOST_OF_ONE, max((soft - SPARE_FILES) // 4, 1))
        self.of_user = Counter[int | None]()
        self.refused = refused


class PeerProtocol(HttpToolsProtocol):
    """One connection: uvicorn's, with its peer in the scope of each request."""

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
        self._user: int | None = None  #: None: a connection over TCP

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin with a new connection, unless its user has too many."""
        super().connection_made(transport)
        # uvloop's view of a socket takes another file for each question.
        view = transport.get_extra_info("socket")
        self._accepted = socket.socket(view.family, view.type, view.proto, fileno=view.fileno())
        peer = peer_of(self._accepted)
        self._user = None if peer is None else peer.credentials.uid
        self.app_state = {**self.app_state, KEY: peer}
        self._connections.of_user[self._user] += 1
        if self._connections.of_user[self._user] > self._connections.most:
            self._connections.refused()
            transport.write(TOO_MANY)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection that has ended."""
        super().connection_lost(exc)
        self._accepted.detach()
        self._connections.of_user[self._user] -= 1


class Server(uvicorn.Server):
    """uvicorn's, with the daemon's own signals: it ends with 0, and SIGHUP is no end."""

    def __init__(self, app: ASGIApp, connections: Connections) -> None:
        """Take the app, and the users' connections."""
        self._end = asyncio.Event()
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(PeerProtocol, connections=connections),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=DRAIN_SECONDS,
            )
        )

    async def main_loop(self) -> None:
        """Wait for the end.

        uvicorn's own looks for it ten times a second, and each time wakes up an idle CPU.
        """
        await self.on_tick(0)
        await self._end.wait()

    def end(self) -> None:
        """Answer the pending requests and end; when called twice, end at once."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._end.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the daemon."""
        yield


class Servers:
    """Serves on all sockets until it is stopped."""

    def __init__(
        self, app: ASGIApp, plan_only: ASGIApp, listeners: Listeners, refused: Callable[[], None]
    ) -> None:
        """Take the app, the app for plans only, the sockets, the counter of refused connections."""
        self._unix = listeners.unix
        connections = Connections(refused)
        self._sockets = {
            Server(app, connections): (self._unix.socket, *listeners.tcp),
            Server(plan_only, connections): listeners.plan,
        }

    async def run(self) -> None:
        """Serve; return when every request has ended. Raises the errors of a server."""
        await asyncio.gather(
            *(
                server.serve([copy for listener in sockets for copy in _copies(listener)])
                for server, sockets in self._sockets.items()
            )
        )

    def stop(self) -> None:
        """Answer the pending requests and end; when called twice, end at once."""
        for server in self._sockets:
            server.end()

    async def watch(self) -> None:
        """Regularly set the Date of answers; never returns.

        Raises FatalError when the socket's file is deleted or replaced: no client could connect.
        """
        while self._unix.is_reachable():
            for server in self._sockets:
                await server.on_tick(0)
            await asyncio.sleep(until_multiple(CHECK_SECONDS))
        raise FatalError(f"{self._unix.path} is gone, or another process's")


def _copies(listener: socket.socket) -> Iterator[socket.socket]:
    """Yield a socket again and again, as far as there are files for it."""
    yield listener
    with suppress(OSError):
        yield from (listener.dup() for _ in range(TAKEN_AT_ONCE - 1))


def raise_file_limit() -> None:
    """Have as many files as the kernel allows, getrlimit(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # it may not be raised: the limit stays as it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
