"""`affinityd init`: in a pod's init container, leaves what its containers pin themselves with."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path

from affinityd import client, conffile
from affinityd.cli.console import say
from affinityd.cli.exec_options import parameters, seconds
from affinityd.cli.parser import Parser
from affinityd.errors import AffinityError, InvalidRequestError, quote
from affinityd.kubernetes import nodeplan
from affinityd.kubernetes.handout import hand_out_plan, hand_out_scripts, hand_out_settings
from affinityd.words import count

NAME = "affinityd init"
WAIT = "10"  #: seconds that a pod's start may be held up for
SOCKET, URL = f"{conffile.PREFIX}SOCKET", f"{conffile.PREFIX}URL"


def add_arguments(parser: Parser) -> None:
    """Add what the command takes."""
    parser.add_argument("--to", metavar="FOLDER", required=True, help="a volume of the pod's")
    parser.add_argument("--socket", metavar="PATH", help="of the node's daemon")
    parser.add_argument("--url", metavar="URL", help="of its Service, like http://affinityd:9466")
    parser.add_argument(
        "--timeout", metavar="SECONDS", default=WAIT, help=f"how long to wait (default: {WAIT})"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the files; a daemon that is not there, or refuses, is no failure."""
    deadline = time.monotonic() + seconds(arguments.timeout)
    said = conffile.variables()
    addresses = _addresses({SOCKET: arguments.socket, URL: arguments.url}, said)
    chosen = parameters({}, said)
    settings = {**addresses, **{conffile.PREFIX + name.upper(): chosen[name] for name in chosen}}
    folder = Path(arguments.to)
    hand_out_scripts(folder)
    hand_out_settings(folder, settings)
    try:
        plan = nodeplan.find(nodeplan.question(chosen), addresses, deadline, _tell)
    except AffinityError as error:
        _tell(f"{error}; {folder} has no plan, only what asks for one")
        return 0
    hand_out_settings(folder, {**settings, **plan.answered})
    hand_out_plan(folder, plan)
    print(f"{NAME}: {folder} has the places of {count(plan.gpus, 'GPU')}, as {plan.source} says")
    return 0


def _addresses(flags: Mapping[str, str | None], said: Mapping[str, str]) -> dict[str, str]:
    """Return where the daemon may be, as the variables of `run`. Raises InvalidRequestError."""
    given = {name: flag or said.get(name) for name, flag in flags.items()}
    found = {name: text for name, text in given.items() if text}
    if URL in found and not client.is_url(found[URL]):
        raise InvalidRequestError(
            f"url: {quote(found[URL])} is not http://HOST:PORT; write it like http://affinityd:9466"
        )
    return found or {SOCKET: conffile.SYSTEM_SOCKET}


def _tell(trouble: str) -> None:
    say(f"{NAME}: {trouble}")
