"""The environment that a process was started with."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def environment_of(pid: int, root: str = "") -> Mapping[str, str] | None:
    """Return the environment that a process was started with; None where it cannot be read.

    Of a name that is there twice the first counts, as for getenv(3). Source: /proc/PID/environ,
    proc(5). `root`: where the machine's files are.
    """
    try:
        with open(f"{root}/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            entries = os.fsdecode(file.read()).split("\0")
    except OSError:
        return None
    return dict(entry.partition("=")[::2] for entry in reversed(entries) if "=" in entry)
