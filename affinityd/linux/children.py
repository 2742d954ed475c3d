"""The end of a child process: wait(2)."""

from __future__ import annotations

import os


def exit_status(pid: int) -> int | None:
    """Return a child's status, negative for a signal; None: it has not ended.

    0 where SIGCHLD is ignored, as by a parent's parent: then the kernel has taken the status.
    """
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return os.waitstatus_to_exitcode(status) if ended else None
