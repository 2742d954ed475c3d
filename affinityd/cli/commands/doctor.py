"""`affinityd doctor`: checks this node for obstacles between ranks and their CPUs."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from affinityd import config
from affinityd.cli.console import aligned
from affinityd.cli.parser import Parser, add_format, add_settings, load_settings
from affinityd.config import NODE_FILE
from affinityd.config.settings import Settings
from affinityd.discovery.machine import Machine
from affinityd.discovery.nvml.maintenance import HOLD, DriverMaintenance
from affinityd.discovery.tree import Tree
from affinityd.doctor.checks import CHECKS, run_checks
from affinityd.doctor.checks.daemon import may_exist, probe
from affinityd.doctor.facts import (
    ENVIRONMENT,
    FAIL,
    NO_ROOT,
    NOT_APPLICABLE,
    STATUSES,
    DaemonFacts,
    NodeFacts,
    worst,
)
from affinityd.errors import InvalidRequestError
from affinityd.json_codec import dumps
from affinityd.text import one_line, quote
from affinityd.topology.model import Node

ASKED_SECONDS = 5.0  #: that NVML may take to answer: a person waits

#: Files of a node that has a daemon, or whose jobs ask one.
EXPECTING = (
    *(f"/{folder}/systemd/system/affinityd.service" for folder in ("etc", "usr/lib")),
    "/etc/slurm/slurm.conf",
)


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    width = max(map(len, CHECKS))
    lines = (f"  {name:<{width}}  {check.looks_at}" for name, check in CHECKS.items())
    status = "exit status: 0: no check fails; 1: one does; 2: the command line is wrong"
    parser.epilog = "\n".join([status, "checks:", *lines])
    parser.add_argument("checks", metavar="CHECK", nargs="*", help="default: all of those below")
    add_format(parser, "table")
    add_settings(parser, ("root", "machine", "node_name", "socket", "reserved_cpus"))


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 0: no check fails, 1: one does."""
    names = arguments.checks
    if unknown := [name for name in names if name not in CHECKS]:
        checks = ", ".join(CHECKS)
        raise InvalidRequestError(f"{quote(unknown[0])} is not a check; there are {checks}")
    facts = gather(load_settings(arguments), names)
    results = run_checks(facts, names)
    if arguments.format == "json":
        document = {"node": facts.topology.name, "worst": worst(results), "checks": results}
        print(dumps(document, indent=1))
    else:
        rows: list[tuple[str, ...]] = []
        for result in results:
            if result.status == NOT_APPLICABLE and not names:
                continue
            rows.append((result.name, result.status, result.found))
            rows += [("", "", f"→ {result.remedy}")] if result.remedy else []
        amounts = Counter(result.status for result in results)
        total = ", ".join(
            f"{amounts[status]} {status}" for status in reversed(STATUSES) if status in amounts
        )
        lines = [
            *aligned(("check", "status", "found"), rows, ()),
            f"{facts.topology.name}: {total}",
        ]
        print("\n".join(map(one_line, lines)))
    return int(worst(results) == FAIL)


def gather(settings: Settings, names: Sequence[str] = (), hold: str = HOLD) -> NodeFacts:
    """Return the facts of the settings' machine for these checks, or all. Raises TreeError."""
    machine = Machine(settings)
    maintenance = DriverMaintenance(hold=hold).reason() if machine.is_live else None
    if maintenance is None and any(CHECKS[name].nvml for name in names or CHECKS):
        machine.query_drivers(ASKED_SECONDS)
    topology = machine.read()
    daemon = _daemon(settings) if machine.is_live else None
    published = daemon.published if daemon else None
    file = config.path()
    variables = [(name, ENVIRONMENT) for name in sorted(os.environ)]
    variables += [(name, file) for name in config.read_file(file)]
    return NodeFacts(
        topology=topology,
        tree=Tree(NO_ROOT, topology.name) if settings.machine else machine.tree,
        reserved=published.reserved if isinstance(published, Node) else settings.reserved_cpus,
        nvml=machine.report,
        variables=tuple(variables) if machine.is_live else (),
        daemon=daemon,
        maintenance=maintenance,
    )


def _daemon(settings: Settings) -> DaemonFacts:
    """Probe the configured socket; else the system's or this user's own, if one is expected."""
    default = config.default_socket()
    roots = Path(config.SYSTEM_SOCKET)
    expecting = (roots, roots.with_name(NODE_FILE), *map(Path, (config.path(), *EXPECTING)))
    if settings.socket not in {default, config.SYSTEM_SOCKET}:
        return probe(settings.socket)
    if any(map(may_exist, expecting)):
        return probe(config.SYSTEM_SOCKET)
    if may_exist(Path(default)):
        return probe(default)
    return DaemonFacts(
        config.SYSTEM_SOCKET, absent=tuple(dict.fromkeys((config.SYSTEM_SOCKET, default)))
    )
