"""`affinityd doctor`: what keeps ranks from their place on this node, and what mends it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from affinityd import conffile
from affinityd.audit.aside import HOLD, Aside
from affinityd.cli.machine import Machine
from affinityd.cli.parser import Parser, add_format, add_settings, load_settings
from affinityd.cli.table import aligned
from affinityd.doctor.checks import CHECKS, Diagnosis, examine, known
from affinityd.doctor.facts import Facts, NoFiles
from affinityd.doctor.finding import FAIL, STATUSES, worst
from affinityd.doctor.probe import held_off, look
from affinityd.errors import one_line
from affinityd.settings import Settings

NVML_SECONDS = 5.0  #: that NVML may take to answer: somebody waits

COLUMNS = ("check", "status", "found")
WIDTH = 2 + max(map(len, CHECKS))  #: of a name in the help


def add_arguments(parser: Parser) -> None:
    """Add what the command takes."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    lines = (f"  {name:<{WIDTH}}{check.looks_at}" for name, check in CHECKS.items())
    parser.epilog = "\n".join(["checks:", *lines])
    parser.add_argument("checks", metavar="CHECK", nargs="*", help="default: all of those below")
    add_format(parser, "table")
    add_settings(parser, ("root", "machine", "node_name", "socket", "reserved_cpus"))


def run(arguments: argparse.Namespace) -> int:
    """Print what is found; 0: nothing fails, 1: something does."""
    names = [known(name) for name in arguments.checks]
    facts = gather(load_settings(arguments), names)
    found = examine(facts, names)
    if arguments.format == "json":
        print(json.dumps(_document(facts.topology.name, found), indent=1))
    else:
        print("\n".join(map(one_line, _table(facts.topology.name, found))))
    return int(worst(it.finding for it in found) == FAIL)


def gather(settings: Settings, names: Sequence[str] = (), hold: str = HOLD) -> Facts:
    """Return the facts of the machine that the settings name, for these checks or all.

    NVML is asked where a check wants it and nobody works on its driver. Raises TreeError.
    """
    machine = Machine(settings)
    aside = Aside(hold=hold).reason() if machine.is_live else None
    if aside is None and any(CHECKS[name].asks_nvml for name in names or CHECKS):
        machine.ask_drivers(NVML_SECONDS)
    topology = machine.read()
    return Facts(
        topology=topology,
        tree=NoFiles(topology.name) if settings.machine else machine.tree,
        root=None if settings.machine else settings.root,
        reserved=settings.reserved_cpus,
        nvml=machine.report,
        daemon=look(_socket(settings)) if machine.is_live else None,
        aside=aside,
        held_off=held_off(hold) if machine.is_live else None,
    )


def _socket(settings: Settings) -> str:
    """Return where the daemon should be: where no socket is named, root's is every user's."""
    is_default = settings.socket == conffile.default_socket()
    is_there = is_default and os.path.lexists(conffile.SYSTEM_SOCKET)
    return conffile.SYSTEM_SOCKET if is_there else settings.socket


def _table(node: str, found: Sequence[Diagnosis]) -> Iterator[str]:
    """Yield the lines: each finding, below it what mends it, and the sum."""
    rows = [row for it in found for row in _rows(it)]
    yield from aligned(COLUMNS, rows, ())
    statuses = [it.finding.status for it in found]
    amounts = (f"{statuses.count(it)} {it}" for it in reversed(STATUSES) if it in statuses)
    yield f"{node}: {', '.join(amounts)}"


def _rows(diagnosis: Diagnosis) -> Iterator[tuple[str, ...]]:
    finding = diagnosis.finding
    yield diagnosis.name, finding.status, finding.found
    if finding.remedy:
        yield "", "", f"→ {finding.remedy}"


def _document(node: str, found: Sequence[Diagnosis]) -> dict[str, Any]:
    """Return the JSON document: an entry a finding."""
    return {
        "node": node,
        "worst": worst(it.finding for it in found),
        "checks": [
            {
                "name": it.name,
                "status": it.finding.status,
                "found": it.finding.found,
                "remedy": it.finding.remedy,
                "gpus": list(it.finding.gpus),
            }
            for it in found
        ],
    }
