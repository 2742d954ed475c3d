"""`affinityd enforce`: which processes the daemon pins, which it leaves alone, and why.

`--check` tells of a policy file before a daemon reads it: what each rule matches and does. `--undo`
gives the threads that enforcement and `affinityd pin` have pinned their former masks.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

from affinityd.cli.parser import Parser, add_format, add_settings, sockets
from affinityd.cli.render.enforcement import lines
from affinityd.client import ask_daemon
from affinityd.cpuset import format_list
from affinityd.enforce import journal
from affinityd.enforce.document import MAX_BYTES, PATH, EnforceDocument
from affinityd.enforce.policy import MAX_FILE, PolicyError, decoded
from affinityd.errors import (
    DAEMON_EXTRA,
    DaemonError,
    InvalidRequestError,
    NoDaemonError,
    NotEnforcedError,
)
from affinityd.grouping import grouped
from affinityd.json_codec import loads
from affinityd.text import count, one_line

TROUBLE = 2  #: exit code of every error: 1 is an answer
TIMEOUT = 5.0  #: seconds: a person waits


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    add_format(parser, "table", "the daemon's document, unchanged")
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument(
        "--all",
        action="store_true",
        help="also processes in the right place, and known system daemons",
    )
    alone.add_argument(
        "--check",
        metavar="FILE",
        help="say what a policy file does, or what is wrong in it; asks no daemon",
    )
    alone.add_argument(
        "--undo",
        action="store_true",
        help="give each pinned thread the mask back that it had; asks no daemon",
    )
    parser.add_argument("--job", metavar="ID", help="with --undo: only the processes of this job")
    add_settings(parser, ("socket",))


def run(arguments: argparse.Namespace) -> int:
    """Print the report; 0: all fits, 1: a process does not run where it should, 2: unknown."""
    if arguments.format == "json" and (arguments.all or arguments.check is not None):
        raise InvalidRequestError(
            "--all and --check print text; leave out --json, which has all of it"
        )
    if arguments.job is not None and not arguments.undo:
        raise InvalidRequestError("--job is for --undo")
    if arguments.undo:
        return _undo(sockets(arguments), arguments.job)
    return _check(arguments.check) if arguments.check is not None else _enforce(arguments)


def _undo(addresses: list[str], job: str | None) -> int:
    """Undo the pins in the journals beside the sockets; 1: the kernel refused a thread."""
    paths = [path for it in addresses if (path := Path(it).with_name(journal.FILE)).exists()]
    try:
        undone = [one for path in paths for one in journal.undo(journal.pins(path), job)]
    except OSError as error:
        raise InvalidRequestError(f"{error.filename} cannot be read: {error.strerror}") from None
    for one in undone:
        for line in _of_process(one):
            print(one_line(f"process {one.pid} ({one.name}): {line}"))
    if not any(one.restored or one.changed or one.refused for one in undone):
        files = " and ".join(map(str, paths)) or "no file"
        print(f"no running process has a pin to undo, by {files}")
    return 1 if any(one.refused for one in undone) else 0


def _of_process(undone: journal.Undone) -> Iterator[str]:
    for mask, threads in grouped(undone.restored.items(), lambda item: item[1]).items():
        yield f"{count(len(threads), 'thread')} back on CPUs {format_list(mask)}"
    if undone.changed:
        yield f"{count(len(undone.changed), 'thread')} left: of another mask since the pin"
    if undone.refused:
        yield f"refused: {undone.refused}; root can undo it"


def _check(path: str) -> int:
    try:
        from affinityd.daemon.policy_document import described  # noqa: PLC0415 - may want tomli

        with Path(path).open("rb") as file:
            rules = described(decoded(file.read(MAX_FILE + 1)))
    except ModuleNotFoundError as error:
        needed = f"{error.name} is needed to read policies, and is not installed"
        raise InvalidRequestError(f"{needed}; {DAEMON_EXTRA}") from None
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read: {error.strerror}") from None
    except PolicyError as error:
        raise InvalidRequestError(f"{path}: {error}") from None
    print("\n".join(one_line(line) for line in (f"{path}: {rules[0]}", *rules[1:])))
    return 0


def _enforce(arguments: argparse.Namespace) -> int:
    deadline, troubles = time.monotonic() + TIMEOUT, []
    for path in sockets(arguments):
        try:
            text = ask_daemon.fetch(
                path, PATH, deadline, refusals=[NotEnforcedError], most=MAX_BYTES
            )
            break
        except NoDaemonError as error:
            troubles.append(str(error))
    else:
        raise NoDaemonError("; ".join(troubles))
    try:
        enforced = loads(EnforceDocument, text, "enforce")
    except ValueError as error:
        raise DaemonError(f"cannot parse the daemon's /enforce response: {error}") from None
    if arguments.format == "json":
        print(text if text.isprintable() else json.dumps(json.loads(text)))
    else:
        print("\n".join(map(one_line, lines(enforced, fitting=arguments.all))))
    return 1 if enforced.has_mismatch else 2 if enforced.knows_nothing else 0
