"""The daemon's sockets: bound before the server starts, so that errors are reported at once.

Another process at the unix socket ends the start. One at a TCP address does not, as any user may
have started it: jobs use the unix socket.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from affinityd.config.settings import Settings
from affinityd.errors import ListenError
from affinityd.linux.processes import credentials

log = logging.getLogger(__name__)

BACKLOG = 2048
WRITABLE_BY_ALL = 0o666  #: the job of every user of the node must reach the daemon


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
