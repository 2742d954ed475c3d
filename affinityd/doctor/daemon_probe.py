"""Looks at the daemon from outside: its socket, its process, its node.json."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from affinityd import config
from affinityd.client import ask_daemon
from affinityd.config import NODE_FILE
from affinityd.doctor.facts import DaemonFacts
from affinityd.enforce.document import MAX_BYTES, PATH, EnforceDocument
from affinityd.errors import REFUSALS, AffinityError, NotEnforcedError
from affinityd.json_codec import loads
from affinityd.linux.cgroup import cpuset_of
from affinityd.linux.processes import credentials
from affinityd.request.document import AllowedCpus
from affinityd.topology.document import read_node
from affinityd.topology.model import Node

READY, METRICS, NRI = "/readyz", "/metrics", "affinityd_nri_"
NO_ROOM = "it accepts no more connections: its queue is full"
PLAN = "/plan?mode=all&format=json"  #: of the cheapest mode; it has this process's CPUs
TIMEOUT = 1.0  #: seconds, as any client of the daemon waits

T = TypeVar("T")


@dataclass(frozen=True)
class PlanPart:
    """The fields read of a plan: a daemon of another release may have others."""

    allowed: AllowedCpus


def probe(path: str, timeout: float = TIMEOUT) -> DaemonFacts:
    """Return the facts of the daemon whose socket is at a path; it is queried if ready."""
    daemon = _listener(path, timeout)
    if daemon.status:

        def queried(target: str, read: Callable[[str], T]) -> T | None:
            deadline, refusals = time.monotonic() + timeout, (*REFUSALS, NotEnforcedError)
            with suppress(AffinityError, ValueError):
                return read(
                    ask_daemon.fetch(path, target, deadline, refusals=refusals, most=MAX_BYTES)
                )
            return None

        plan = queried(PLAN, lambda text: loads(PlanPart, text, PLAN))
        daemon = replace(
            daemon,
            enforcement=queried(PATH, lambda text: loads(EnforceDocument, text, PATH)),
            allowed=plan.allowed if plan else None,
            own_cpuset=cpuset_of(os.getpid()),
            nri=queried(METRICS, _nri_samples),
        )
    folder = Path(path).parent
    mode = _mode(folder) if folder == Path(config.SYSTEM_SOCKET).parent else None
    return replace(
        daemon,
        closed=tuple(_closed(Path(path))),
        open_mode=mode if mode and mode & (stat.S_IWGRP | stat.S_IWOTH) else None,
        published=_published(folder / NODE_FILE),
    )


def _listener(path: str, timeout: float) -> DaemonFacts:
    daemon = DaemonFacts(path)
    deadline = time.monotonic() + timeout
    try:
        with closing(ask_daemon.connect(path, deadline)) as connection:
            daemon = replace(daemon, listens=True, pid=credentials(connection).pid or None)
            answer = ask_daemon.get(connection, READY, deadline)
        return replace(daemon, status=ask_daemon.parse(answer)[0])
    except TimeoutError:
        error = f"no answer within {timeout:.1g} s" if daemon.listens else NO_ROOM
        return replace(daemon, listens=True, error=error)
    except PermissionError as error:
        return replace(daemon, is_denied=True, error=error.strerror)
    except OSError as error:  # a path that is too long has no errno
        return replace(daemon, error=error.strerror or str(error))
    except ValueError as error:
        return replace(daemon, error=str(error))


def _nri_samples(text: str) -> Mapping[str, float] | None:
    """Return the samples of the NRI plugin, by name with labels; None: there is none."""
    lines = (line.rpartition(" ") for line in text.splitlines())
    return {name: float(value) for name, _, value in lines if name.startswith(NRI)} or None


def _closed(path: Path) -> Iterator[str]:
    """Yield the folders that keep other users from the socket.

    A user's runtime folder is for that user alone: XDG Base Directory Specification, mode 0700.
    """
    path = path.absolute()
    private = (config.RUNTIME_FOLDERS, config.runtime_folder())
    if any(map(path.is_relative_to, private)) or not may_exist(path):
        return
    for place in (*reversed(path.parents), path):
        needed = stat.S_IXOTH if place != path else stat.S_IROTH | stat.S_IWOTH
        mode = _mode(place)
        if mode is None:
            return
        if mode & needed != needed:
            yield f"{place} is {mode:04o}"


def _mode(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None


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


def _published(file: Path) -> Node | str:
    try:  # to ask whether it is there may be refused, too
        return read_node(file) if file.exists() else "there is none"
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:
        return str(error)
