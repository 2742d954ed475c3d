"""Looks at the daemon from outside: its socket, its process, what it published."""

from __future__ import annotations

import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from affinityd import enforce_report, nodefile
from affinityd.cgroup import cpuset_of
from affinityd.doctor.facts import Daemon
from affinityd.enforce_report import EnforceReport
from affinityd.errors import AffinityError
from affinityd.service import Node
from affinityd.ucred import credentials

REQUEST = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
FIRST_LINE = 32  #: bytes: `HTTP/1.1 200 OK` and a little more

TIMEOUT = 1.0  #: seconds, as any client of the daemon waits


def look(path: str, timeout: float = TIMEOUT) -> Daemon:
    """Return what is to be seen of the daemon whose socket is at a path; it is asked if ready."""
    daemon = _ask(path, timeout)
    published, unpublished = _published(Path(path).with_name(nodefile.NAME))
    enforces, unenforced = _enforces(path, timeout) if daemon.status else (None, None)
    return replace(
        daemon,
        cpuset=cpuset_of(daemon.pid) if daemon.pid else None,
        shut=tuple(_shut(Path(path))),
        published=published,
        unpublished=unpublished,
        enforces=enforces,
        unenforced=unenforced,
    )


def _ask(path: str, timeout: float) -> Daemon:
    """Return who listens, and what it answers."""
    nobody = Daemon(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(path)
        except OSError as error:  # a path that is too long has no errno
            return replace(nobody, error=error.strerror or str(error))
        somebody = replace(nobody, listens=True, pid=credentials(connection).pid or None)
        try:
            connection.sendall(REQUEST)
            version, _, rest = connection.recv(FIRST_LINE).partition(b" ")
        except TimeoutError:
            return replace(somebody, error=f"no answer within {timeout:g} s")
        except OSError as error:
            return replace(somebody, error=error.strerror)
    if not (version.startswith(b"HTTP/1.") and rest[:3].isdigit()):
        return replace(somebody, error="it does not speak HTTP")
    return replace(somebody, status=int(rest[:3]))


def _shut(path: Path) -> Iterator[str]:
    """Yield what keeps other users from the socket."""
    path = path.absolute()
    for place in (*reversed(path.parents), path):
        needed = stat.S_IXOTH if place != path else stat.S_IROTH | stat.S_IWOTH
        try:
            mode = stat.S_IMODE(place.stat().st_mode)
        except OSError:
            return
        if mode & needed != needed:
            yield f"{place} is {mode:04o}"


def held_off(path: str) -> float | None:
    """Return for how many seconds NVML has been held off by a file; None where there is none."""
    try:
        return max(0.0, time.time() - Path(path).lstat().st_mtime)
    except OSError:
        return None


def _published(file: Path) -> tuple[Node | None, str | None]:
    """Return the node that a daemon published, or why there is none."""
    try:  # to ask whether it is there may be refused, too
        return (nodefile.read(file), None) if file.exists() else (None, "there is none")
    except OSError as error:
        return None, error.strerror
    except ValueError as error:
        return None, str(error)


def _enforces(path: str, timeout: float) -> tuple[EnforceReport | None, str | None]:
    """Return what a daemon pins from outside, or why it says nothing of that."""
    try:
        return enforce_report.read(enforce_report.ask(path, time.monotonic() + timeout)), None
    except AffinityError as error:
        return None, str(error)
    except ValueError as error:
        return None, f"its answer is none: {error}"
