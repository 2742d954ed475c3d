"""`affinityd measure`: memory and GPU bandwidth from near and from far CPUs."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from affinityd.audit.auditor import Auditor
from affinityd.audit.document import rfc3339
from affinityd.audit.sources.holders import HolderSources
from affinityd.cli.console import progress, say
from affinityd.cli.parser import Parser, add_format
from affinityd.cli.render.measure import lines
from affinityd.cli.target import this_machine
from affinityd.config.settings import MEASURED
from affinityd.discovery.nvml.query import query_processes
from affinityd.json_codec import dumps
from affinityd.measure.document import save
from affinityd.measure.run import Busy, measure
from affinityd.text import one_line
from affinityd.topology.model import Topology

FORCE = "--force measures it all the same, and disturbs what runs there"


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    add_format(parser, "table")
    parser.add_argument(
        "--force", action="store_true", help="also GPUs that processes use, or may use"
    )
    parser.add_argument(
        "--concurrent",
        action="store_true",
        help="also copies to all GPUs at once, from near and from far CPUs",
    )
    parser.add_argument(
        "--save",
        metavar="FILE",
        nargs="?",
        const=MEASURED,
        help=f"also write the JSON document, which the daemon reads (default: {MEASURED})",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the measurement; 0: something was measured, 1: nothing was."""
    topology = this_machine("cannot be measured").topology
    busy = {} if arguments.force or not topology.gpus else _busy(topology)
    now = rfc3339(time.time())
    measurement = measure(topology, busy, now, progress, at_once=arguments.concurrent)
    if arguments.format == "json":
        print(dumps(measurement, indent=1, ensure_ascii=False))
    else:
        print("\n".join(lines(measurement)))
    if arguments.save is not None:
        save(measurement, Path(arguments.save))
        say(f"{arguments.save}: written")
    return 0 if any(figure.value is not None for figure in measurement.figures) else 1


def _busy(topology: Topology) -> Busy:
    scan = Auditor(HolderSources(query_processes).held).scan(topology)
    users = {
        key: one_line(f"process {process.facts.pid} ({process.facts.name}) uses it; {FORCE}")
        for process in scan.processes
        if process.facts.holding is not None and not process.is_daemon
        for key in process.facts.gpus
    }
    return {**users, **{key: f"{why}; {FORCE}" for key, why in scan.unknown.items()}}
