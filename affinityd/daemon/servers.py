"""The daemon's sockets, and uvicorn's servers on them: for the whole API, and for plans only.

Sockets are bound before a server starts, so that errors are reported at once. If another process
listens at the unix socket, the start fails. If a process of any user listens at a TCP address, the
start goes on, since jobs use the unix socket.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from affinityd.config.settings import Settings
from affinityd.daemon.api.peers import Connections, PeerProtocol
from affinityd.daemon.state import pause, until_multiple
from affinityd.daemon.state.topology_watcher import notify
from affinityd.errors import FatalError, ListenError
from affinityd.linux.processes import credentials

log = logging.getLogger(__name__)

BACKLOG = 512  #: how many connections may wait; clients do not wait for more
CHECK_SECONDS = 2.0  #: how often the socket's file is checked; the watcher checks as often


@dataclass(frozen=True)
class Listeners:
    """The listening sockets: for the whole API, the unix socket first, and for plans only."""

    path: Path  #: path of the unix socket
    file: os.stat_result
    everything: list[socket.socket]
    plans: list[socket.socket]

    def __str__(self) -> str:
        """Return the addresses."""
        tcp = "".join(", {}:{}".format(*tcp.getsockname()) for tcp in self.everything[1:])
        plans = "".join(", only plans on {}:{}".format(*tcp.getsockname()) for tcp in self.plans)
        return f"on {self.path}{tcp}{plans}"

    def is_reachable(self) -> bool:
        """Whether the path leads to this socket: programs delete or replace files under /run."""
        try:
            return os.path.samestat(self.path.lstat(), self.file)
        except OSError:
            return False

    async def watch(self) -> None:
        """Tell systemd regularly that the loop runs (WatchdogSec=); never return.

        Raises FatalError when the socket's file is deleted or replaced: no client could connect.
        """
        while self.is_reachable():
            notify("WATCHDOG=1")
            await asyncio.sleep(until_multiple(CHECK_SECONDS))
        raise FatalError(f"{self.path} is gone, or belongs to another process")


@contextmanager
def listening(settings: Settings) -> Iterator[Listeners]:
    """Listen on the addresses of the settings. Raises ListenError, before anything is served.

    If another process listens at a TCP address, that address is skipped, with a line in the log.
    """
    path = Path(settings.socket)
    everything = [listen_unix(path)]
    listeners = Listeners(path, path.lstat(), everything, [])
    try:
        everything += _listen_tcp("listen", settings.listen)
        ports = {tcp.getsockname()[1] for tcp in everything[1:]}
        listeners.plans.extend(_listen_tcp("listen-plan", settings.listen_plan, ports))
        yield listeners
    finally:
        if listeners.is_reachable():  # otherwise another daemon's socket is there
            path.unlink(missing_ok=True)
        everything[0].close()


def _listen_tcp(
    setting: str, address: tuple[str, int] | None, ports: Collection[int] = ()
) -> list[socket.socket]:
    """Listen at an address of the settings if it is free; the daemon listens at `ports` already."""
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
    except UnicodeError:  # a name that no host can have
        raise ListenError(f"{setting}: {host}:{port}: not a host name; {remedy}") from None
    if port in ports:
        raise ListenError(f"{setting}: {host}:{port} is the address of the whole API; {remedy}")
    log.warning("%s; the next start tries this address again; everything else is served", line)
    return []


def _bound(host: str, port: int) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    # The protocol is given because asyncio sets TCP_NODELAY only then.
    listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def listen_unix(path: Path) -> socket.socket:
    """Listen on a path that every user can reach. A stale socket is replaced.

    Raises ListenError for a socket of another process, which the message names, and for a folder
    that is not writable.
    """
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)  # another daemon may make it
            path.parent.chmod(0o755)  # independent of the umask
        _take(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(os.fspath(path))
        path.chmod(0o666)  # jobs of every user of the node must reach the daemon
        listener.listen(BACKLOG)
    except OSError as error:
        cause = error.strerror or error  # the error for a path that is too long has no number
        raise ListenError(f"socket: {path}: {cause}; give another by --socket") from None
    return listener


def _take(path: Path) -> None:
    """Remove a socket that no process listens on. Raises ListenError for another file; OSError."""
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
        except BlockingIOError:  # unix(7): the queue of a listening socket is full
            holder = "a process that accepts no connection"
        else:
            pid = credentials(probe).pid
            holder = f"process {pid}" if pid > 0 else "a process that is not visible here"
        raise ListenError(f"socket: {path}: {holder} listens there already; stop it first")


class Server(uvicorn.Server):
    """uvicorn's server, but the daemon handles signals, to exit with 0 and to survive SIGHUP."""

    def __init__(
        self, app: ASGIApp, sockets: list[socket.socket], connections: Connections
    ) -> None:
        """Take the app, its listening sockets, and the users' connections."""
        self._sockets = sockets
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
                timeout_graceful_shutdown=5,  # seconds for requests in progress at SIGTERM
            )
        )

    async def answer(self) -> None:
        """Serve until shutdown; return when every request has ended."""
        await self.serve(self._sockets)

    async def main_loop(self) -> None:
        """Update the Date header until shutdown.

        uvicorn's own loop checks for shutdown ten times a second, and each time wakes an idle CPU.
        """
        while not self.should_exit:
            await self.on_tick(0)
            await pause(self._end, until_multiple(CHECK_SECONDS))

    def end(self) -> None:
        """Answer the pending requests and shut down. Requests that take too long are no error."""
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        self.should_exit = True
        self._end.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the daemon."""
        yield


def raise_file_limit() -> None:
    """Raise the limit of open files to the kernel's hard limit, getrlimit(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # the limit cannot be raised: it stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
