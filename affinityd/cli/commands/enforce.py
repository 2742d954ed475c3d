"""`affinityd enforce`: which processes the daemon pins, which it leaves alone, and why.

`--check` tells of a policy file before a daemon reads it: what each rule matches and does.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from affinityd import config
from affinityd.cli.parser import Parser, add_format, add_settings
from affinityd.cli.render.enforcement import lines
from affinityd.client import ask_daemon
from affinityd.enforce.document import MAX_BYTES, PATH, EnforceDocument
from affinityd.enforce.policy import MAX_FILE, PolicyError, decoded
from affinityd.errors import (
    DAEMON_EXTRA,
    DaemonError,
    InvalidRequestError,
    NoDaemonError,
    NotEnforcedError,
)
from affinityd.json_codec import loads
from affinityd.text import one_line

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
    add_settings(parser, ("socket",))


def run(arguments: argparse.Namespace) -> int:
    """Print the report; 0: all fits, 1: a process does not run where it should, 2: unknown."""
    if arguments.format == "json" and (arguments.all or arguments.check is not None):
        raise InvalidRequestError(
            "--all and --check print text; leave out --json, which has all of it"
        )
    return _check(arguments.check) if arguments.check is not None else _enforce(arguments)


def _check(path: str) -> int:
    try:
        from affinityd.daemon.policy_document import described  # noqa: PLC0415 - wants pydantic
    except ModuleNotFoundError as error:
        raise InvalidRequestError(
            f"{error.name} is needed to read policies, and is not installed; {DAEMON_EXTRA}"
        ) from None
    try:
        with Path(path).open("rb") as file:
            rules = described(decoded(file.read(MAX_FILE + 1)))
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read: {error.strerror}") from None
    except PolicyError as error:
        raise InvalidRequestError(f"{path}: {error}") from None
    print("\n".join(one_line(line) for line in (f"{path}: {rules[0]}", *rules[1:])))
    return 0


def _enforce(arguments: argparse.Namespace) -> int:
    variables = config.variables()
    if arguments.socket is not None:
        variables[f"{config.PREFIX}SOCKET"] = arguments.socket
    text = _asked(config.sockets(variables))
    try:
        enforced = loads(EnforceDocument, text, "enforce")
    except ValueError as error:
        raise DaemonError(f"cannot parse the daemon's /enforce response: {error}") from None
    if arguments.format == "json":
        print(text if text.isprintable() else json.dumps(json.loads(text)))
    else:
        print("\n".join(map(one_line, lines(enforced, fitting=arguments.all))))
    return 1 if enforced.has_mismatch else 2 if enforced.knows_nothing else 0


def _asked(sockets: list[str]) -> str:
    deadline = time.monotonic() + TIMEOUT
    troubles = []
    for path in sockets:
        try:
            return ask_daemon.fetch(
                path, PATH, deadline, refusals=[NotEnforcedError], most=MAX_BYTES
            )
        except NoDaemonError as error:  # noqa: PERF203 - two paths at most
            troubles.append(str(error))
    raise NoDaemonError("; ".join(troubles))
