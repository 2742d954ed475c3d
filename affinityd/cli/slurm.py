"""`affinityd slurm`: a node's gres.conf, written or checked."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from affinityd.cli.console import say
from affinityd.cli.machine import read_once
from affinityd.cli.parser import Parser, add_format, add_settings, load_settings
from affinityd.errors import one_line, quote
from affinityd.slurm import writer
from affinityd.slurm.affinity import SCOPES
from affinityd.slurm.allocations import far
from affinityd.slurm.check import Check
from affinityd.slurm.configured import for_node
from affinityd.slurm.gresconf import Fault, Line
from affinityd.slurm.jobs import NOTES, jobs
from affinityd.slurm.reading import PLACES, default, read
from affinityd.slurm.report import Report
from affinityd.words import count

COMMANDS = {
    "gres-conf": "print this node's lines of gres.conf",
    "check": "say what is wrong about a gres.conf, and which jobs are far from their GPUs",
}

NO_NODE = set(" \t\n\"'#=,[]\\")  #: what no node's name has


def add_arguments(parser: Parser) -> None:
    """Add what the command takes."""
    commands = parser.add_subparsers(dest="command", metavar="|".join(COMMANDS), required=True)
    gres_conf, check = (
        commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        for name, text in COMMANDS.items()
    )
    gres_conf.add_argument(
        "--node-name", metavar="NAME", type=_node_name, help="begin each line with NodeName=NAME"
    )
    check.add_argument(
        "--node-name",
        metavar="NAME",
        type=_node_name,
        help="whose lines count, as slurm.conf names the node (default: this host)",
    )
    check.add_argument(
        "--gres-conf",
        metavar="FILE",
        help=f"the file (default: the first of {', '.join(f'/{place}' for place in PLACES)})",
    )
    add_format(check, "text")
    for command in (gres_conf, check):
        command.add_argument(
            "--scope",
            choices=SCOPES,
            default="node",
            help="whose cores a GPU gets: its NUMA node's (default), or its package's",
        )
        add_settings(command, ("root", "machine"))


def run(arguments: argparse.Namespace) -> int:
    """Run one of the two."""
    return {"gres-conf": _gres_conf, "check": _check}[arguments.command](arguments)


def _node_name(text: str) -> str:
    if not text or NO_NODE & set(text):
        raise argparse.ArgumentTypeError(f"{quote(text)} is no node's name")
    return text


def _gres_conf(arguments: argparse.Namespace) -> int:
    """Print the lines; 0: of every GPU, 1: not of all."""
    topology = read_once(load_settings(arguments))
    for line in writer.write(topology, scope=arguments.scope, node_name=arguments.node_name):
        print(line)
    lacking, gpus = len(writer.unknown(topology)), len(topology.gpus)
    if lacking or not gpus:
        what = f"the device files of {lacking} of {count(gpus, 'GPU')} are not known"
        say(f"affinityd slurm gres-conf: {what if gpus else 'this node has no GPU'}")
    return int(lacking > 0 or not gpus)


def _check(arguments: argparse.Namespace) -> int:
    """Print what is wrong; 0: nothing, 1: something, 2: not every line can be read."""
    settings = load_settings(arguments)
    topology = read_once(settings)
    root = Path(settings.root)
    file = Path(arguments.gres_conf) if arguments.gres_conf else default(root)
    lines = list(read(file))
    node = arguments.node_name or topology.name.partition(".")[0]
    configured = for_node((it for it in lines if isinstance(it, Line)), node)
    check = Check(configured, topology, arguments.scope)
    # A shipped machine has no jobs: those of this node are not its.
    running = [] if settings.machine else list(jobs(root))
    judged = [job for job in running if job.gpus is not None]
    report = Report(
        node=node,
        gpus=len(topology.gpus),
        malformed=(*(it for it in lines if isinstance(it, Fault)), *configured.faults),
        findings=tuple(check.findings()),
        far_jobs=tuple(text for job in judged for text in far(topology, job)),
        jobs=sum(bool(job.gpus) for job in judged),
        notes=(*check.notes(node), *_passed_over(len(running) - len(judged), root)),
        is_judged=not check.unjudged,
    )
    if arguments.format == "json":
        print(json.dumps(report.document(), indent=1))
    else:
        print("\n".join(map(one_line, report.lines())))
    return report.exit_code


def _passed_over(number: int, root: Path) -> Iterator[str]:
    if number:
        yield f"{count(number, 'job')} passed over: {root / NOTES} does not tell the GPUs"
