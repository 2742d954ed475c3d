"""`affinityd doctor`: checks this node for obstacles between ranks and their CPUs."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Sequence
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
    NOT_APPLICABLE,
    STATUSES,
    CheckResult,
    DaemonFacts,
    NodeFacts,
    worst,
)
from affinityd.errors import InvalidRequestError
from affinityd.json_codec import dumps
from affinityd.text import one_line, quote
from affinityd.topology.model import Node


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    width = max(map(len, CHECKS))
    lines = (f"  {name:<{width}}  {check.looks_at}" for name, check in CHECKS.items())
    status = "exit status: 0: no check fails; 1: one does; 2: the command line is wrong"
    parser.epilog = "\n".join([status, "checks:", *lines])
    parser.add_argument("checks", metavar="CHECK", nargs="*", help="default: all checks below")
    add_format(parser, "table")
    add_settings(parser, ("root", "machine", "node_name", "socket", "reserved_cpus"))


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 0: no check fails, 1: one does."""
    names = arguments.checks
    for name in names:
        if name not in CHECKS:
            checks = ", ".join(CHECKS)
            raise InvalidRequestError(f"{quote(name)} is not a check; there are {checks}")
    facts = gather(load_settings(arguments), names)
    results = run_checks(facts, names)
    if arguments.format == "json":
        document = {"node": facts.topology.name, "worst": worst(results), "checks": results}
        print(dumps(document, indent=1))
    else:
        for line in _table(facts.topology.name, results, shows_all=bool(names)):
            print(one_line(line))
    return int(worst(results) == FAIL)


def _table(node: str, results: Sequence[CheckResult], *, shows_all: bool) -> Iterator[str]:
    """Yield the lines of a table; `shows_all`: also results that are not applicable."""
    rows = []
    for result in results:
        if result.status == NOT_APPLICABLE and not shows_all:
            continue
        rows.append((result.name, result.status, result.found))
        if result.remedy:
            rows.append(("", "", f"→ {result.remedy}"))
    yield from aligned(("check", "status", "found"), rows, ())
    amounts = Counter(result.status for result in results)
    worst_first = [status for status in reversed(STATUSES) if status in amounts]
    yield f"{node}: " + ", ".join(f"{amounts[status]} {status}" for status in worst_first)


def gather(settings: Settings, names: Sequence[str] = (), hold: str = HOLD) -> NodeFacts:
    """Return a machine's facts for these checks or, without any, for all. Raises TreeError."""
    machine = Machine(settings)
    maintenance = DriverMaintenance(hold=hold).reason() if machine.is_live else None
    if maintenance is None and any(CHECKS[name].nvml for name in names or CHECKS):
        machine.query_drivers(5.0)  # seconds at most: a user waits
    topology = machine.read()
    file = config.path()
    in_file = config.read_file(file)
    daemon = None
    reserved = settings.reserved_cpus
    variables = []
    if machine.is_live:
        daemon = _daemon(settings)
        if isinstance(daemon.published, Node):
            reserved = daemon.published.reserved
        variables += [(name, ENVIRONMENT) for name in sorted(os.environ)]
        variables += [(name, file) for name in in_file]
    if settings.machine:  # a built-in machine has no files, as nothing is below /dev/null
        tree = Tree(f"{os.devnull}/", topology.name)
    else:
        tree = machine.tree
    return NodeFacts(
        topology=topology,
        tree=tree,
        reserved=reserved,
        nvml=machine.report,
        variables=tuple(variables),
        daemon=daemon,
        maintenance=maintenance,
    )


def _daemon(settings: Settings) -> DaemonFacts:
    """Probe the configured socket. Instead of a default, probe where a daemon is expected."""
    default = config.default_socket()
    system = config.SYSTEM_SOCKET
    if settings.socket not in {default, system}:
        return probe(settings.socket)
    # If one of these files exists, a daemon is installed here, or jobs ask for a daemon.
    expecting = (
        system,
        Path(system).with_name(NODE_FILE),
        config.path(),
        "/etc/systemd/system/affinityd.service",
        "/usr/lib/systemd/system/affinityd.service",
        "/etc/slurm/slurm.conf",
    )
    if any(may_exist(Path(path)) for path in expecting):
        return probe(system)
    if may_exist(Path(default)):
        return probe(default)
    absent = (system,) if default == system else (system, default)
    return DaemonFacts(system, absent=absent)
