"""What was set in a process's environment when it was started, as far as that can still be read.

Sources: /proc/PID/environ, proc_pid_environ(5).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from affinityd.audit.model import ProcessFacts
from affinityd.linux.processes import PROC, cgroups_of, stat_of

#: Bytes that are read of one. execve(2) takes some megabytes; a process may name all of its memory,
#: PR_SET_MM_MAP of prctl(2).
MOST = 1024 * 1024

LONGEST = 4096  #: bytes of a value; a longer one is not set

ANCESTORS = 8  #: that are asked for one that has written over its own


def environment(
    facts: ProcessFacts, variables: Collection[str], proc: str = PROC
) -> Mapping[str, str] | None:
    """Return those of the variables that are set; None where they cannot be read.

    Who gives itself another title (setproctitle, as in Ray's and vLLM's workers) writes zeros over
    what it was started with: then those of the nearest ancestor in the same cgroups count. Of a
    name that is there twice the first counts, as for getenv(3).
    """
    pid, start = facts.pid, facts.start
    for _ in range(ANCESTORS):
        data = _content(pid, proc)
        stat = stat_of(pid, proc)
        if data is None or stat is None or stat.start != start:
            return None
        if not _is_overwritten(data):
            return _those(data, variables)
        parent = stat_of(stat.parent, proc)
        if parent is None or cgroups_of(parent.number, proc) != facts.cgroups:
            return None
        pid, start = parent.number, parent.start
    return None


def _content(pid: int, proc: str) -> bytes | None:
    """Return what there is of it, in whole entries."""
    try:
        with Path(proc, f"{pid}/environ").open("rb") as file:
            data = file.read(MOST + 1)
    except OSError:
        return None
    return data if len(data) <= MOST else data[: data.rfind(b"\0") + 1]


def _is_overwritten(data: bytes) -> bool:
    """Whether it is no environment: entries have one NUL between them. A zombie has none either."""
    return not data or b"\0\0" in data


def _those(data: bytes, variables: Collection[str]) -> dict[str, str]:
    wanted = {variable.encode(): variable for variable in variables}
    found: dict[str, bytes] = {}
    for entry in data.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name in wanted:
            found.setdefault(wanted[name], value)
    return {
        variable: value.decode(errors="surrogateescape")
        for variable, value in found.items()
        if len(value) <= LONGEST
    }
