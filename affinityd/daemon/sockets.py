"""The daemon's sockets: bound before the server starts, so that what is wrong is said at once.

Another process at the unix socket ends the start. One at a TCP address does not, as it may be any
user's: the address is listened on later.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from affinityd.config.settings import Settings
from affinityd.errors import InUseError, ListenError
from affinityd.linux.peercred import credentials
from affinityd.topology import node_file

BACKLOG = 2048
MAX_PATH = 107  #: bytes of sun_path less its NUL, unix(7)
EVERYBODY = 0o666  #: the job of every user of the node must reach the daemon


@dataclass(frozen=True)
class UnixListener:
    """A listening unix socket, and what it takes to leave no trace of it."""

    path: Path
    socket: socket.socket
    lock: io.FileIO  #: held while this daemon lives; the kernel frees it, however it ends
    file: tuple[int, int]  #: its device and inode

    def is_reachable(self) -> bool:
        """Whether the path leads here: files under /run are cleaned away, and replaced."""
        return not self.lock.closed and _file(self.path) == self.file

    def close(self) -> None:
        """Stop listening; the path goes too, unless somebody has put another socket there."""
        if self.is_reachable():
            self.path.unlink(missing_ok=True)
        self.socket.close()
        self.lock.close()


@dataclass
class TcpListener:
    """A TCP address of the settings, and the socket that listens there."""

    setting: str
    host: str
    port: int
    socket: socket.socket | None = None  #: None while another process listens there
    _resolved: _Resolved | None = field(default=None, init=False)

    def listen(self) -> None:
        """Listen. Raises ListenError with one line that names the setting, InUseError among them.

        The host's name is looked up the first time alone: later ones are in the servers' loop.
        """
        try:
            self.socket = _listen(*self._address())
        except OSError as error:
            kind = InUseError if error.errno == errno.EADDRINUSE else ListenError
            raise self._refused(kind, error.strerror) from None

    def includes(self, other: TcpListener) -> bool:
        """Whether who listens here takes what another is to have. Raises ListenError."""
        if self.port != other.port or self.port == 0:
            return False
        ours, theirs = self._address(), other._address()
        return ours == theirs or any(
            ipaddress.ip_address(address[0]).is_unspecified for _, _, address in (ours, theirs)
        )

    def _address(self) -> _Resolved:
        try:
            if self._resolved is None:
                self._resolved = _resolve(self.host, self.port)
        except OSError as error:
            raise self._refused(ListenError, error.strerror) from None
        except UnicodeError:  # from a name that can be no host's
            raise self._refused(ListenError, "not a host name") from None
        return self._resolved

    def _refused(self, kind: type[ListenError], cause: str | None) -> ListenError:
        return kind(
            f"{self.setting}: {self.host}:{self.port}: {cause}; "
            f"give another by --{self.setting} HOST:PORT, or none"
        )

    def __str__(self) -> str:
        """Return where it listens."""
        host, port = self.socket.getsockname()[:2] if self.socket else (self.host, self.port)
        return f"{host}:{port}"


@dataclass
class Listeners:
    """The sockets on which everything is answered, and those on which plans alone are."""

    unix: UnixListener
    tcp: Sequence[TcpListener]
    plan: Sequence[TcpListener]

    def renew(self) -> None:
        """Listen on the path anew. Raises ListenError where that cannot be, for now or for good."""
        self.unix.close()
        self.unix = listen_unix(self.unix.path)

    def __str__(self) -> str:
        """Return where they listen."""
        tcp, plan = ([str(it) for it in those if it.socket] for those in (self.tcp, self.plan))
        plans_alone = f", plans alone on {', '.join(plan)}" if plan else ""
        return f"on {', '.join((str(self.unix.path), *tcp))}{plans_alone}"


@contextlib.contextmanager
def listening(settings: Settings) -> Iterator[Listeners]:
    """Listen wherever the settings say. Raises ListenError, before anything is served.

    A TCP address where another process listens is left without a socket.
    """
    path = Path(settings.socket)
    if path.name == node_file.NAME:
        raise ListenError(f"socket: {path} is where the node file is to be; give another name")
    tcp = [TcpListener("listen", *settings.listen)] if settings.listen else []
    plan = [TcpListener("listen-plan", *settings.listen_plan)] if settings.listen_plan else []
    for everything, plans in product(tcp, plan):
        if everything.includes(plans):
            raise ListenError(
                f"listen-plan: {plans} is where everything is answered; "
                "give another by --listen-plan HOST:PORT, or none"
            )
    listeners = Listeners(listen_unix(path), tcp, plan)
    try:
        for listener in (*tcp, *plan):
            with suppress(InUseError):
                listener.listen()
        yield listeners
    finally:
        listeners.unix.close()


def listen_unix(path: Path) -> UnixListener:
    """Listen on a path that every user can reach. A stale socket is taken over.

    Raises ListenError for one that another process answers, which is named, and for a folder that
    does not take it.
    """
    if len(os.fsencode(path)) > MAX_PATH:
        raise ListenError(f"socket: {path} is longer than the {MAX_PATH} bytes that Linux takes")
    if _is_something_else(path):
        raise ListenError(f"socket: {path} is there and is no socket; give another by --socket")
    with contextlib.ExitStack() as undone:
        try:
            _make_folder(path.parent)
            lock = undone.enter_context(_open_lock(path))
            _take(path, lock)
            listener = undone.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind(os.fspath(path))
            path.chmod(EVERYBODY)
            listener.listen(BACKLOG)
            status = path.stat()
        except OSError as error:
            raise ListenError(
                f"socket: {path}: {error.strerror}; give another by --socket"
            ) from None
        undone.pop_all()
    return UnixListener(path, listener, lock, (status.st_dev, status.st_ino))


#: A TCP address as the kernel takes it: family, kind and address, of getaddrinfo(3).
_Resolved = tuple[socket.AddressFamily, socket.SocketKind, tuple[Any, ...]]


def _resolve(host: str, port: int) -> _Resolved:
    family, kind, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return family, kind, address


def _listen(
    family: socket.AddressFamily, kind: socket.SocketKind, address: tuple[Any, ...]
) -> socket.socket:
    # The protocol is named because asyncio sets TCP_NODELAY only where it is.
    with contextlib.ExitStack() as undone:
        listener = undone.enter_context(socket.socket(family, kind, socket.IPPROTO_TCP))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        undone.pop_all()
    return listener


def _make_folder(folder: Path) -> None:
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)  # another daemon may make it, too
        folder.chmod(0o755)  # whatever the umask is


def _open_lock(path: Path) -> io.FileIO:
    lock = path.with_name(f".{path.name}.lock")
    return io.FileIO(os.open(lock, os.O_CREAT | os.O_RDWR, 0o600), "r+")


def _take(path: Path, lock: io.FileIO) -> None:
    """Make the path free, unless a living process is behind it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ListenError(f"socket: {path}: {_holder(path)}") from None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        answer = probe.connect_ex(os.fspath(path))
    if answer in {0, errno.EAGAIN}:
        raise ListenError(f"socket: {path}: {_holder(path)}")
    if answer == errno.ECONNREFUSED:
        path.unlink(missing_ok=True)


def _holder(path: Path) -> str:
    """Say who listens on a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            probe.connect(os.fspath(path))
            pid = credentials(probe).pid
        except BlockingIOError:  # unix(7): its queue is full
            return "a process that takes no connection listens there already; stop it first"
        except OSError:
            return "another affinityd is starting or stopping there"
    who = f"process {pid}" if pid > 0 else "a process that is not seen from here"
    return f"{who} listens there already; stop it first"


def _is_something_else(path: Path) -> bool:
    try:
        return not stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:  # there is nothing, or what is wrong is said when it is bound
        return False


def _file(path: Path) -> tuple[int, int] | None:
    """Return the device and inode at a path."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
