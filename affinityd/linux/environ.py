"""The environment that a process was started with."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: Bytes that are read. execve(2) takes some megabytes; a process may name all of its memory,
#: PR_SET_MM_MAP of prctl(2).
MOST = 4 * 1024 * 1024


def environment_of(pid: int, root: str = "") -> Mapping[str, str] | None:
    """Return the environment that a process was started with; None where it cannot be read.

    Of a name that is there twice the first counts, as for getenv(3). Empty is that of a process
    which has written its title over it (setproctitle): then two NULs follow each other. Source:
    /proc/PID/environ, proc(5). `root`: where the machine's files are.
    """
    try:
        with open(f"{root}/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            data = file.read(MOST + 1)
    except OSError:
        return None
    whole = data if len(data) <= MOST else data[: data.rfind(b"\0")]
    entries = [] if b"\0\0" in data else os.fsdecode(whole).split("\0")
    return dict(entry.partition("=")[::2] for entry in reversed(entries) if "=" in entry)
