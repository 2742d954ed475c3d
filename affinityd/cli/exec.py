"""`affinityd exec`: takes its place, then becomes the command.

What is imported here counts in every rank's start: no argparse, re, json, dataclasses or socket on
the way to execve(2).
"""

from __future__ import annotations

import os
import time

from affinityd import conffile, memory, myself, place
from affinityd.become import become
from affinityd.cli import exec_options
from affinityd.cli.console import say
from affinityd.errors import AffinityError, InvalidRequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from affinityd.cli.exec_options import Options

NAME = "affinityd exec"
FAILED = 125  #: as env(1) and timeout(1) have it: the command was not tried


def main(argv: Sequence[str]) -> int:
    """Become the command; return only where that fails: 125, 126 or 127."""
    start = time.monotonic()
    if argv and argv[0] in {"-h", "--help"}:
        exec_options.print_help()
        return 0
    try:
        words, command = exec_options.split(argv)
    except InvalidRequestError as error:
        say(f"{NAME}: {error}")
        return FAILED
    trouble = None if conffile.is_off() else _trouble(words, start)
    if trouble is None:
        return become(command, NAME)
    if exec_options.fails_closed(words):
        say(f"{NAME}: {trouble}; the command was not started")
        return FAILED
    say(f"{NAME}: {trouble}; the command runs unpinned")
    return become(command, NAME)


def _trouble(words: Sequence[str], start: float) -> str | None:
    """Take this process's place; return what kept it from that."""
    try:
        _take_place(exec_options.read(words), start)
    except AffinityError as error:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a bug of ours must not be the end of a job
        return f"{type(error).__name__}: {error}"
    return None


def _take_place(options: Options, start: float) -> None:
    """Find this process's place, take it, and say so to the command. Raises AffinityError."""
    said = conffile.variables()
    timeout = exec_options.seconds(options.get("timeout") or said.get("AFFINITYD_TIMEOUT"))
    policy = memory.wanted(options.get("memory") or said.get("AFFINITYD_MEMORY"))
    given = exec_options.parameters(options, said)
    sockets = conffile.sockets(said)
    found = place.find(myself.questions(given), sockets, start, timeout, bounded=True)
    taken = myself.take(found, policy, myself.pin)
    verbose = [myself.told(found, taken, given)] if "verbose" in options else []
    for line in (*verbose, *myself.spread(found, given), *taken.remarks):
        say(f"{NAME}: {line}")
    if "omp" in options and not os.environ.get("OMP_NUM_THREADS"):
        os.environ["OMP_NUM_THREADS"] = str(min(found.threads, len(taken.cpus)))
