"""Becoming a command, as if it had been started in our stead."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` takes half as long as Python's start
import errno
import os

from affinityd.cli.console import say
from affinityd.linux.environ import environment_of
from affinityd.text import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: As env(1) and timeout(1) have it.
CANNOT_RUN, NOT_FOUND = 126, 127

#: What does not end the search along PATH.
SEARCH_ON = frozenset(
    (
        *(errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENAMETOOLONG),
        *(errno.ESTALE, errno.ENODEV, errno.ETIMEDOUT),
    )
)

LC_CTYPE, COERCED = "LC_CTYPE", frozenset(("C.UTF-8", "C.utf8", "UTF-8"))  #: PEP 538


def become(command: Sequence[str], name: str) -> int:
    """Execute a command, execvp(3). Return 126 or 127, and say why, where that fails.

    `name` is what we are called by in that line.
    """
    _undo_python()
    trouble = _execute(*command)
    say(f"{name}: {quote(command[0])} cannot be run: {os.strerror(trouble)}")
    return NOT_FOUND if trouble == errno.ENOENT else CANNOT_RUN


def _execute(program: str, *arguments: str) -> int:
    """Execute a program as execvp(3) does. Return the error number where it fails."""
    trouble = errno.ENOENT
    for path in _candidates(program):
        number = _try(path, [program, *arguments])
        if number == errno.ENOEXEC:  # a script without #!, which is the shell's
            return _try("/bin/sh", ["sh", path, *arguments])
        if trouble != errno.EACCES or number not in SEARCH_ON:
            trouble = number
        if number not in SEARCH_ON:
            break
    return trouble


def _candidates(program: str) -> list[str]:
    if "/" in program or not program:
        return [program]
    folders = os.environ.get("PATH", os.defpath).split(":")
    return [f"{folder or '.'}/{program}" for folder in folders]


def _try(path: str, words: list[str]) -> int:
    try:
        os.execv(path, words)  # noqa: S606 - it is what we are for
    except OSError as error:
        return error.errno or errno.EIO
    except ValueError:  # Python's own, for an empty word
        return errno.ENOENT


def _undo_python() -> None:
    """Take back what Python's start did to what a program inherits.

    It ignores two signals; like `subprocess`, we cannot know whether they were ignored before. In
    the C locale it sets LC_CTYPE.
    """
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
    if os.environ.get(LC_CTYPE) in COERCED:
        started_with = environment_of(os.getpid())
        if started_with is not None:
            del os.environ[LC_CTYPE]
            if LC_CTYPE in started_with:
                os.environ[LC_CTYPE] = started_with[LC_CTYPE]
