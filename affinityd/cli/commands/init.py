"""`affinityd init`: in an init container, writes the files that pin programs of the pod."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from affinityd import config
from affinityd.cli.console import say
from affinityd.cli.parser import Parser
from affinityd.client import ask_daemon
from affinityd.client.apply import NICS, NO_LIBRARY, nic_libraries
from affinityd.config.settings import host_and_port
from affinityd.errors import AffinityError, InvalidRequestError
from affinityd.kubernetes import node_plan
from affinityd.kubernetes.node_plan import NodePlan, write_plan, write_scripts, write_settings
from affinityd.text import count, quote

SOCKET = f"{config.PREFIX}SOCKET"
URL = f"{config.PREFIX}URL"


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    parser.epilog = (
        "Then start the program with FOLDER/run. AFFINITYD_SOCKET and AFFINITYD_URL "
        "also say where the daemon is; AFFINITYD_MODE, AFFINITYD_NICS and so on apply "
        "to the whole pod. exit status: 0: the scripts are there; 1, 2: they are not"
    )
    parser.add_argument(
        "--to", metavar="FOLDER", required=True, help="a volume that the pod's containers share"
    )
    parser.add_argument(
        "--socket",
        metavar="PATH",
        help=f"the daemon's socket on the node (default: {config.SYSTEM_SOCKET}, without a URL)",
    )
    parser.add_argument(
        "--url", metavar="URL", help="the daemons' Service, like http://affinityd.affinityd:9466"
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", default="10", help="how long to wait (default: 10)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the files. Raises InvalidRequestError; OutputError if the scripts cannot be written."""
    # Without a handler, SIGTERM would not end a container's first process.
    signal.signal(signal.SIGTERM, _end)
    deadline = time.monotonic() + ask_daemon.seconds(arguments.timeout)
    addresses = _addresses(arguments.socket, arguments.url, "url")
    if not arguments.to:
        raise InvalidRequestError("to is empty; name a folder, like /affinity")
    folder = Path(arguments.to)
    write_scripts(folder)
    try:
        plan = _leave_plan(folder, addresses, deadline)
    except AffinityError as error:
        _tell(f"{error}; no plan was left in {folder}: programs will ask a daemon")
    else:
        gpus = count(len(plan.document.ranks), "GPU")
        print(f"affinityd init: {folder} has the CPUs near {gpus}, from {plan.source}")
    return 0


def _end(signal_number: int, _frame: object) -> None:
    sys.exit(128 + signal_number)


def _leave_plan(folder: Path, named: Mapping[str, str], deadline: float) -> NodePlan:
    try:
        variables = config.variables()
        here = config.chosen_switch()
    except InvalidRequestError as error:  # the pod must still start, unpinned
        _tell(str(error))
        variables = {}
        for name, text in os.environ.items():
            if name.startswith(config.PREFIX):
                variables[name] = text
        here = config.OFF
    try:
        nic_libraries(variables.get(NICS) or NO_LIBRARY)
    except InvalidRequestError as error:
        _tell(str(error))
    try:
        addresses = _addresses(variables.get(SOCKET), variables.get(URL), URL)
    except InvalidRequestError as error:
        _tell(str(error))
        addresses = _addresses(variables.get(SOCKET), None, URL)
    addresses = {**addresses, **named} or {SOCKET: config.SYSTEM_SOCKET}
    chosen = config.plan_parameters(variables)
    settings = dict(addresses)
    for name, text in chosen.items():
        settings[config.PARAMETER_VARIABLES.get(name, name)] = text
    if NICS in variables:
        settings[NICS] = variables[NICS]
    write_settings(folder, settings, here)
    plan = node_plan.find(node_plan.node_query(chosen), addresses, deadline)
    write_settings(folder, {**settings, **plan.answered}, config.least_switch(here, plan.switch))
    write_plan(folder, plan)
    return plan


def _addresses(socket: str | None, url: str | None, name: str) -> dict[str, str]:
    addresses = {}
    if socket:
        addresses[SOCKET] = socket
    if not url:
        return addresses
    plain = url.rstrip("/")
    host = ""
    port = 0
    with suppress(ValueError):
        host, port = host_and_port(plain.removeprefix(ask_daemon.HTTP))
    if not plain.startswith(ask_daemon.HTTP) or set(host) & set("/ @?#") or not port:
        raise InvalidRequestError(
            f"{name}: {quote(url)} is not http://HOST:PORT; write it like http://affinityd:9466"
        )
    addresses[URL] = plain
    return addresses


def _tell(trouble: str) -> None:
    say(f"affinityd init: {trouble}")
