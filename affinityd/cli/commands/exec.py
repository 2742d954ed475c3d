"""`affinityd exec`: pins itself to the CPUs near its GPU, then becomes the command.

Imports here delay every rank's start: no argparse, re, json, dataclasses or socket on
the way to execve(2).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` takes half as long as Python's start
import errno
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from affinityd.cli import exec_options
from affinityd.cli.console import say
from affinityd.client import apply, find_plan
from affinityd.config import file, switch
from affinityd.errors import AffinityError, InvalidRequestError
from affinityd.linux.files import environment_of
from affinityd.text import quote

if TYPE_CHECKING:
    from affinityd.cli.exec_options import Options

NAME = "affinityd exec"
#: As env(1) and timeout(1) have it; the first: the command was not tried.
FAILED, CANNOT_RUN, NOT_FOUND = 125, 126, 127

#: Errors that do not end the search along PATH.
SEARCH_ON = frozenset(
    (
        *(errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENAMETOOLONG),
        *(errno.ESTALE, errno.ENODEV, errno.ETIMEDOUT),
    )
)

LC_CTYPE, COERCED = "LC_CTYPE", frozenset(("C.UTF-8", "C.utf8", "UTF-8"))  #: PEP 538


def main(argv: Sequence[str]) -> int:
    """Execute the command; return only if that fails: 125, 126 or 127."""
    start = time.monotonic()
    if argv and argv[0] in {"-h", "--help"}:
        exec_options.print_help()
        return 0
    try:
        words, command = exec_options.split(argv)
    except InvalidRequestError as error:
        say(f"{NAME}: {error}")
        return FAILED
    trouble = _trouble(words, start)
    if trouble is None:
        return become(command)
    if exec_options.fails_closed(words):
        say(f"{NAME}: {trouble}; the command was not started")
        return FAILED
    say(f"{NAME}: {trouble}; the command runs unpinned")
    return become(command)


def _trouble(words: Sequence[str], start: float) -> str | None:
    """Pin this process, if the switch is on; return why it was not pinned, if so."""
    chosen = switch.ON
    try:
        chosen = file.chosen_switch()
        if chosen != switch.OFF:
            _take_place(exec_options.parse(words), start, chosen)
    except AffinityError as error:
        trouble = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a bug here must not end a job
        trouble = f"{type(error).__name__}: {error}"
    else:
        return None
    if chosen == switch.OBSERVE:
        apply.export_unpinned(trouble)
        return None
    return trouble


def _take_place(options: Options, start: float, chosen: str) -> None:
    """Find this process's CPUs, pin it there, and tell the command. Raises AffinityError.

    Where only observing was `chosen`, here or by the daemon, it stays where it is.
    """
    variables = file.variables()
    timeout = exec_options.seconds(options.get("timeout") or variables.get("AFFINITYD_TIMEOUT"))
    policy = options.get("memory") or variables.get("AFFINITYD_MEMORY")
    if policy is not None:
        from affinityd.linux.memory_policy import checked_policy  # noqa: PLC0415 - few ask for one

        policy = checked_policy(policy)
    libraries = options.get("nics") or variables.get("AFFINITYD_NICS") or ""
    given = exec_options.parameters(options, variables)
    questions = apply.own_questions(given, chosen)
    found = find_plan.find_plan(questions, file.sockets(variables), start, timeout, bounded=True)
    if found.switch != switch.ON:
        apply.export_observed(found)
        return
    cpus, _, remarks = apply.apply_plan(found, policy)
    if libraries:
        from affinityd.client import export_nics  # noqa: PLC0415 - few ask for it

        remarks += export_nics.export_nics(libraries, found.rdma, variables)
    verbose = [apply.summary(found, cpus, given)] if "verbose" in options else []
    if verbose and libraries:
        verbose.append(f"NICs for {libraries}: {os.environ.get(export_nics.EXPORTED) or 'none'}")
    for line in (*verbose, *apply.gpus_far_apart(found, given), *remarks):
        say(f"{NAME}: {line}")
    if "omp" in options and not os.environ.get("OMP_NUM_THREADS"):
        os.environ["OMP_NUM_THREADS"] = str(min(found.threads, len(cpus)))


def become(command: Sequence[str]) -> int:
    """Execute a command, execvp(3). If that fails, print why, and return 126 or 127."""
    _undo_python()
    trouble = _execute(*command)
    say(f"{NAME}: {quote(command[0])} cannot be run: {os.strerror(trouble)}")
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
        os.execv(path, words)  # noqa: S606 - the purpose of this command
    except OSError as error:
        return error.errno or errno.EIO
    except ValueError:  # Python's own, for an empty word
        return errno.ENOENT


def _undo_python() -> None:
    """Undo the changes of Python's start to the state that a program inherits.

    It ignores two signals; like `subprocess`, it cannot know whether they were ignored before. In
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
