"""`affinityd exec`: takes its place, then becomes the command.

What is imported here counts in every rank's start: no argparse, re, json, dataclasses or socket on
the way to execve(2).
"""

from __future__ import annotations

import os
import time

from affinityd.cli import exec_options
from affinityd.cli.console import say
from affinityd.cli.execvp import become
from affinityd.client import apply, locate
from affinityd.config import file, switch
from affinityd.errors import AffinityError, InvalidRequestError
from affinityd.linux import memory_policy

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
    trouble = _trouble(words, start)
    if trouble is None:
        return become(command, NAME)
    if exec_options.fails_closed(words):
        say(f"{NAME}: {trouble}; the command was not started")
        return FAILED
    say(f"{NAME}: {trouble}; the command runs unpinned")
    return become(command, NAME)


def _trouble(words: Sequence[str], start: float) -> str | None:
    """Take this process's place, if the switch is on; return what kept it from that."""
    chosen = switch.ON
    try:
        chosen = file.chosen_switch()
        if chosen != switch.OFF:
            _take_place(exec_options.read(words), start, chosen)
    except AffinityError as error:
        trouble = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a bug of ours must not be the end of a job
        trouble = f"{type(error).__name__}: {error}"
    else:
        return None
    if chosen == switch.OBSERVE:
        apply.export_unpinned(trouble)
        return None
    return trouble


def _take_place(options: Options, start: float, chosen: str) -> None:
    """Find this process's place, take it, and say so to the command. Raises AffinityError.

    Where only observing was `chosen`, here or by the daemon, it stays where it is.
    """
    said = file.variables()
    timeout = exec_options.seconds(options.get("timeout") or said.get("AFFINITYD_TIMEOUT"))
    policy = memory_policy.checked_policy(options.get("memory") or said.get("AFFINITYD_MEMORY"))
    given = exec_options.parameters(options, said)
    questions = apply.questions(given, chosen)
    found = locate.find(questions, file.sockets(said), start, timeout, bounded=True)
    if found.switch != switch.ON:
        apply.export_observed(found)
        return
    taken = apply.apply_place(found, policy, apply.set_own_mask)
    verbose = [apply.summary(found, taken, given)] if "verbose" in options else []
    for line in (*verbose, *apply.gpus_far_apart(found, given), *taken.remarks):
        say(f"{NAME}: {line}")
    if "omp" in options and not os.environ.get("OMP_NUM_THREADS"):
        os.environ["OMP_NUM_THREADS"] = str(min(found.threads, len(taken.cpus)))
