"""Looks at the daemon from outside: its socket, its process, what it published."""

from __future__ import annotations

import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

from affinityd.client import trust
from affinityd.config import file as conffile
from affinityd.cpuset import format_list
from affinityd.doctor.facts import CallerIdentification, DaemonFacts
from affinityd.doctor.http_probe import NoAnswerError, ask, connect
from affinityd.enforce import client
from affinityd.enforce.client import EnforceReport
from affinityd.errors import AffinityError
from affinityd.json_reader import JsonValue
from affinityd.linux.cgroup import cpuset_of
from affinityd.linux.peercred import credentials
from affinityd.text import one_line
from affinityd.topology import node_file
from affinityd.topology.node import Node

READY = "/readyz"
PLAN = "/plan?mode=all"  #: of the cheapest mode, for this process: it says where it may run

MAX_LINE = 300  #: characters that are shown of what a daemon says

TIMEOUT = 1.0  #: seconds, as any client of the daemon waits


def probe(path: str, timeout: float = TIMEOUT) -> DaemonFacts:
    """Return what is to be seen of the daemon whose socket is at a path; it is asked if ready."""
    daemon = _ask(path, timeout)
    published, unpublished = _published(Path(path).with_name(node_file.NAME))
    enforces, unenforced = _enforces(path, timeout) if daemon.status else (None, None)
    told, untold = _told(path, timeout) if daemon.status else (None, None)
    return replace(
        daemon,
        cpuset=cpuset_of(daemon.pid) if daemon.pid else None,
        closed=tuple(_shut(Path(path))),
        published=published,
        publish_error=unpublished,
        enforcement=enforces,
        enforcement_error=unenforced,
        identification=told,
        identification_error=untold,
    )


def _ask(path: str, timeout: float) -> DaemonFacts:
    """Return who listens, and what it answers."""
    somebody = DaemonFacts(path)
    deadline = time.monotonic() + timeout
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connect(connection, path, deadline)
            pid = credentials(connection).pid or None
            somebody = replace(
                somebody, listens=True, pid=pid, distrust=_distrust(path, connection)
            )
            return replace(somebody, status=ask(connection, READY, deadline).status)
        except NoAnswerError as error:
            return replace(somebody, listens=True, error=str(error))
        except PermissionError as error:
            return replace(somebody, is_denied=True, error=error.strerror)
        except OSError as error:  # a path that is too long has no errno
            return replace(somebody, error=error.strerror or str(error))


def _distrust(path: str, connection: socket.socket) -> str | None:
    """Return why a client does not believe who listens; None: it does."""
    try:
        trust.check_daemon(path, connection)
    except AffinityError as error:
        return str(error)
    except OSError as error:
        return f"a part of {path} is not to be seen: {error.strerror}"
    return None


def _told(path: str, timeout: float) -> tuple[CallerIdentification | None, str | None]:
    """Return what a daemon says of us, who state no cpuset; or why it says nothing."""
    deadline = time.monotonic() + timeout
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connect(connection, path, deadline)
            answer = ask(connection, PLAN, deadline)
            document = JsonValue(json.loads(answer.body), "plan")
            if answer.status != HTTPStatus.OK:
                return None, _line(document["detail"].text())
            allowed = document["allowed"]
            within = allowed.get("within")
            known = within.maybe(JsonValue.cpus) if within else None
            shown = None if known is None else format_list(known)
            return CallerIdentification(
                allowed["source"].text(), shown, cpuset_of(os.getpid())
            ), None
        except NoAnswerError as error:
            return None, str(error)
        except OSError as error:
            return None, error.strerror
        except (ValueError, RecursionError):
            return None, "what it answers is no plan"


def _line(said: str) -> str:
    """Return a line of whoever listens there: no longer than a daemon's, and harmless."""
    return one_line(said if len(said) <= MAX_LINE else f"{said[:MAX_LINE]}…")


def _shut(path: Path) -> Iterator[str]:
    """Yield what keeps other users from the socket.

    A user's runtime folder is for that user alone: XDG Base Directory Specification, mode 0700.
    """
    path = path.absolute()
    if _is_of_one_user(path) or not may_exist(path):
        return
    for place in (*reversed(path.parents), path):
        needed = stat.S_IXOTH if place != path else stat.S_IROTH | stat.S_IWOTH
        try:
            mode = stat.S_IMODE(place.stat().st_mode)
        except OSError:
            return
        if mode & needed != needed:
            yield f"{place} is {mode:04o}"


def _is_of_one_user(path: Path) -> bool:
    folders = (conffile.RUNTIME_FOLDERS, conffile.runtime_folder())
    return any(path.is_relative_to(folder) for folder in folders)


def may_exist(path: Path) -> bool:
    """Whether a path exists, or permissions hide whether it does."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def file_age(path: str) -> float | None:
    """Return for how many seconds NVML has been held off by a file; None where there is none."""
    try:
        return max(0.0, time.time() - Path(path).lstat().st_mtime)
    except OSError:
        return None


def _published(file: Path) -> tuple[Node | None, str | None]:
    """Return the node that a daemon published, or why there is none."""
    try:  # to ask whether it is there may be refused, too
        return (node_file.read(file), None) if file.exists() else (None, "there is none")
    except OSError as error:
        return None, error.strerror
    except ValueError as error:
        return None, str(error)


def _enforces(path: str, timeout: float) -> tuple[EnforceReport | None, str | None]:
    """Return what a daemon pins from outside, or why it says nothing of that."""
    try:
        return client.read(client.ask(path, time.monotonic() + timeout)), None
    except AffinityError as error:
        return None, str(error)
    except ValueError as error:
        return None, f"its answer is none: {error}"
