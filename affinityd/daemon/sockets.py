"""The daemon's sockets: bound before the server starts, so that what is wrong is said at once.

Another process at the unix socket ends the start. One at a TCP address does not, as it may be any
user's: the address is listened on later.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from affinityd.config.settings import Settings
from affinityd.errors import ListenError
from affinityd.linux.peercred import credentials

log = logging.getLogger(__name__)

BACKLOG = 2048
EVERYBODY = 0o666  #: the job of every user of the node must reach the daemon


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


class TcpListener:
    """A TCP address of the settings, and the socket that listens there."""

    def __init__(self, setting: str, host: str, port: int) -> None:
        """Look the host up. Raises ListenError."""
        self.setting = setting
        self._name = f"{host}:{port}"
        self.socket: socket.socket | None = None  #: None while another process listens there
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as error:
            raise self.refused(error.strerror) from None
        except UnicodeError:  # from a name that can be no host's
            raise self.refused("not a host name") from None
        self._family, self._address = found[0][0], found[0][4]

    def listen(self) -> bool:
        """Listen; return False where another process does. Raises ListenError, OSError."""
        # The protocol is named because asyncio sets TCP_NODELAY only where it is.
        listener = socket.socket(self._family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(self._address)
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                return False
            raise self.refused(error.strerror) from None
        self.socket = listener
        return True

    def includes(self, other: TcpListener) -> bool:
        """Whether a socket that listens here takes what another one is to have."""
        ours, theirs = self._address, other._address
        return ours[1] == theirs[1] != 0 and (
            ours[0] == theirs[0]
            or any(ipaddress.ip_address(it[0]).is_unspecified for it in (ours, theirs))
        )

    def refused(self, cause: str | None) -> ListenError:
        """Return the error of an address that is not to be had: one line that names the setting."""
        return ListenError(
            f"{self.setting}: {self._name}: {cause}; "
            f"give another by --{self.setting} HOST:PORT, or none"
        )

    def __str__(self) -> str:
        """Return where it listens."""
        return "{}:{}".format(*self.socket.getsockname()) if self.socket else self._name


@dataclass(frozen=True)
class Listeners:
    """The sockets on which everything is answered, and those on which plans alone are."""

    unix: UnixListener
    tcp: Sequence[TcpListener]
    plan: Sequence[TcpListener]

    def __str__(self) -> str:
        """Return where they listen."""
        tcp, plan = ([str(it) for it in those if it.socket] for those in (self.tcp, self.plan))
        plans_alone = f", plans alone on {', '.join(plan)}" if plan else ""
        return f"on {', '.join((str(self.unix.path), *tcp))}{plans_alone}"


@contextlib.contextmanager
def listening(settings: Settings) -> Iterator[Listeners]:
    """Listen wherever the settings say. Raises ListenError, before anything is served.

    A TCP address where another process listens is left without a socket, and the log tells so.
    """
    tcp = [TcpListener("listen", *settings.listen)] if settings.listen else []
    plan = [TcpListener("listen-plan", *settings.listen_plan)] if settings.listen_plan else []
    for everything, plans in product(tcp, plan):
        if everything.includes(plans):
            raise ListenError(
                f"listen-plan: {plans} is where everything is answered; "
                "give another by --listen-plan HOST:PORT, or none"
            )
    unix = listen_unix(Path(settings.socket))
    try:
        for listener in (*tcp, *plan):
            if not listener.listen():
                in_use = listener.refused(os.strerror(errno.EADDRINUSE))
                log.warning("%s; it is tried again, and all else is served", in_use)
        yield Listeners(unix, tcp, plan)
    finally:
        unix.close()


def listen_unix(path: Path) -> UnixListener:
    """Listen on a path that every user can reach. A stale socket is taken over.

    Raises ListenError for one that another process answers, which is named, and for a folder that
    does not take it.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)  # another daemon may make it, too
            path.parent.chmod(0o755)  # whatever the umask is
        _take(path)
        listener.bind(os.fspath(path))
        path.chmod(EVERYBODY)
        listener.listen(BACKLOG)
        status = path.stat()
    except OSError as error:
        listener.close()
        cause = error.strerror or error  # a path that is too long has no number
        raise ListenError(f"socket: {path}: {cause}; give another by --socket") from None
    except ListenError:
        listener.close()
        raise
    return UnixListener(path, listener, (status.st_dev, status.st_ino))


def _take(path: Path) -> None:
    """Remove a socket that no process listens on. Raises ListenError for anything else; OSError."""
    with suppress(FileNotFoundError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ListenError(f"socket: {path} is there and is no socket; give another by --socket")
        probe.settimeout(0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:  # unix(7): its queue is full
            holder = "a process that takes no connection"
        else:
            pid = credentials(probe).pid
            holder = f"process {pid}" if pid > 0 else "a process that is not seen from here"
        raise ListenError(f"socket: {path}: {holder} listens there already; stop it first")
