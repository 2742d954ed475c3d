"""The end of a child process: by itself, wait(2), or with its parent, prctl(2)."""

from __future__ import annotations

import os

from affinityd.linux.syscalls import kill_with_parent


def exit_status(pid: int) -> int | None:
    """Return a child's status, negative for a signal; None: it has not ended.

    0 where SIGCHLD is ignored, as by a parent's parent: then the kernel has taken the status.
    """
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return os.waitstatus_to_exitcode(status) if ended else None


def end_with(parent: int) -> None:
    """End when the parent has ended, also in the middle of a call that hangs. Raises OSError."""
    kill_with_parent()
    if os.getppid() != parent:  # it ended before that
        os._exit(0)
