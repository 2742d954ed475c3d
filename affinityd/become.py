"""Becoming a command, as if it had been started in our stead."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` takes half as long as Python's start
import errno
import os

from affinityd.cli.console import say
from affinityd.errors import quote
from affinityd.task import environment_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: As env(1) and timeout(1) have it.
CANNOT_RUN, NOT_FOUND = 126, 127


def become(command: Sequence[str], name: str) -> int:
    """Execute a command, execvp(3). Return 126 or 127, and say why, where that fails.

    `name` is what we are called by in that line.
    """
    _undo_python()
    trouble = _execute(*command)
    say(f"{name}: {quote(command[0])} cannot be run: {os.strerror(trouble)}")
    return NOT_FOUND if trouble in {errno.ENOENT, errno.ENOTDIR} else CANNOT_RUN


def _execute(program: str, *arguments: str) -> int:
    """Return the error number where it fails."""
    if not program:
        return errno.ENOENT
    try:
        os.execvp(program, [program, *arguments])  # noqa: S606 - it is what we are for
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            return error.errno or errno.EIO
    # A script without #!: execvp(3) gives it to the shell, and Python does not.
    import shutil  # noqa: PLC0415 - for a rarity

    return os.execv("/bin/sh", ["sh", shutil.which(program) or program, *arguments])  # noqa: S606


def _undo_python() -> None:
    """Take back what Python's start did to what a program inherits.

    It ignores two signals; like `subprocess`, we cannot know whether they were ignored before. In
    the C locale it sets LC_CTYPE (PEP 538).
    """
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
    if os.environ.get("LC_CTYPE") == "C.UTF-8":
        started_with = environment_of(os.getpid())
        if started_with is not None and "LC_CTYPE" not in started_with:
            del os.environ["LC_CTYPE"]
