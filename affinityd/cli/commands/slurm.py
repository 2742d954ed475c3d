"""`affinityd slurm`: a node's gres.conf, written or checked."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path

from affinityd.cli.console import say
from affinityd.cli.parser import Parser, add_format, add_settings, load_settings
from affinityd.config.settings import Settings
from affinityd.discovery.machine import read_once
from affinityd.errors import InvalidRequestError
from affinityd.slurm import gres_writer
from affinityd.slurm.allocations import far
from affinityd.slurm.check import Check
from affinityd.slurm.config.expected import Expected, Unknown
from affinityd.slurm.config.gpu_types import Types, types
from affinityd.slurm.config.gres_files import FOLDERS, default, read
from affinityd.slurm.config.gres_parser import Fault, Line
from affinityd.slurm.config.hostlist import nodes
from affinityd.slurm.config.node_config import Configured, for_node
from affinityd.slurm.config.site import NodeName, Site, open_site
from affinityd.slurm.jobs import NOTES, jobs
from affinityd.slurm.machine.core_affinity import SCOPES
from affinityd.slurm.report import Report
from affinityd.text import count, one_line, quote
from affinityd.topology.model import Topology

COMMANDS = {
    "gres-conf": "print this node's lines of gres.conf",
    "check": "say what is wrong about a gres.conf, and which jobs are far from their GPUs",
}

NO_NODE = set(" \t\n\"'#=,[]\\")  #: what no node's name has
NO_TYPE = NO_NODE | set(":()")


def add_arguments(parser: Parser) -> None:
    """Add what the command takes."""
    commands = parser.add_subparsers(dest="command", metavar="|".join(COMMANDS), required=True)
    gres_conf, check = (
        commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        for name, text in COMMANDS.items()
    )
    gres_conf.add_argument(
        "--node-name",
        metavar="NAMES",
        dest="nodes",
        type=_hostlist,
        help="begin each line with NodeName=NAMES: one name, or equal nodes like gpu[001-500]",
    )
    gres_conf.add_argument(
        "--type",
        metavar="TYPE[,TYPE...]",
        type=_types,
        default=(),
        help="the Type= of all GPUs, or of each in the order of the lines, where slurm.conf, "
        "scontrol and the present gres.conf do not tell it",
    )
    check.add_argument(
        "--node-name",
        metavar="NAME",
        dest="node",
        type=_node_name,
        help="whose lines count, as slurm.conf names the node (default: this host)",
    )
    check.add_argument(
        "--gres-conf",
        metavar="FILE",
        help=f"the file (default: the first gres.conf of {', '.join(f'/{it}' for it in FOLDERS)})",
    )
    add_format(check, "text")
    for command in (gres_conf, check):
        command.add_argument(
            "--slurm-conf",
            metavar="FILE",
            help="what slurmctld is configured with (default: $SLURM_CONF, else the first "
            f"slurm.conf of {', '.join(f'/{it}' for it in FOLDERS)}, else what scontrol says)",
        )
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


def _hostlist(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a hostlist as it is written, and its names."""
    try:
        names = nodes(text)
    except (ValueError, InvalidRequestError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text, tuple(map(_node_name, names))


def _types(text: str) -> tuple[str, ...]:
    kinds = tuple(text.split(","))
    if not all(kinds) or NO_TYPE & set("".join(kinds)):
        raise argparse.ArgumentTypeError(f"{quote(text)} is no type; write it like a100")
    return kinds


def _gres_conf(arguments: argparse.Namespace) -> int:
    """Print the lines; 0: of every GPU, 1: not of all."""
    settings = load_settings(arguments)
    topology = read_once(settings)
    site = _site(settings, arguments.slurm_conf)
    text, names = arguments.nodes or (None, ())
    own = site.node_name(topology.name, os.environ)
    names = [own.name, *names] if own.name in names else names or [own.name]
    expected = site.expected(names)
    known = expected if isinstance(expected, Expected) else None
    present = _present(settings, site, names[0])
    kinds = types(topology.gpus, known, present.types if present else {}, arguments.type)
    lines = gres_writer.write(
        topology, scope=arguments.scope, node_name=text, types=kinds, expected=known
    )
    for line in lines:
        print(line)
    faults = list(_lacking(topology, kinds))
    for fault in faults:
        say(f"affinityd slurm gres-conf: {fault}")
    is_site = site.is_live or site.conf is not None
    if isinstance(expected, Unknown) and is_site and not (faults or arguments.type):
        node = own if names[0] == own.name else NodeName(names[0], "--node-name")
        say(
            f"affinityd slurm gres-conf: the Gres= of node {node} is not known here "
            f"({expected.why}); if it has a type, name it with --type"
        )
    return int(bool(faults))


def _lacking(topology: Topology, kinds: Types) -> Iterator[str]:
    gpus = topology.gpus
    if not gpus:
        yield "this node has no GPU"
    files, untyped = len(gres_writer.unknown(topology)), len(gpus) - len(kinds.of)
    if files:
        yield f"the device files of {files} of {count(len(gpus), 'GPU')} are not known"
    if untyped:
        yield (
            f"the types of {untyped} of {count(len(gpus), 'GPU')} are not known: {kinds.why}; "
            "name one for each with --type, or in the present gres.conf"
        )


def _site(settings: Settings, slurm_conf: str | None) -> Site:
    return open_site(None if settings.machine else settings.root, slurm_conf, os.environ)


def _present(settings: Settings, site: Site, node: str) -> Configured | None:
    """Return what the present gres.conf says of a node; None where there is none to be read."""
    if settings.machine:
        return None
    try:
        lines = read(default(Path(settings.root), beside=site.named))
        return for_node((it for it in lines if isinstance(it, Line)), node)
    except InvalidRequestError:
        return None


def _check(arguments: argparse.Namespace) -> int:
    """Print what is wrong; 0: nothing, 1: something, 2: not every line can be read."""
    settings = load_settings(arguments)
    topology = read_once(settings)
    root = Path(settings.root)
    site = _site(settings, arguments.slurm_conf)
    file = Path(arguments.gres_conf or default(root, beside=site.named))
    lines = list(read(file))
    named = arguments.node and NodeName(arguments.node, "--node-name")
    node = named or site.node_name(topology.name, os.environ)
    configured = for_node((it for it in lines if isinstance(it, Line)), node.name)
    expected = site.expected([node.name])
    known = expected if isinstance(expected, Expected) else None
    check = Check(configured, topology, arguments.scope, known)
    # A shipped machine has no jobs: those of this node are not its.
    running = [] if settings.machine else list(jobs(root))
    judged = [job for job in running if job.gpus is not None]
    report = Report(
        node=node.name,
        gpus=len(topology.gpus),
        malformed=(*(it for it in lines if isinstance(it, Fault)), *configured.faults),
        findings=tuple(check.findings()),
        far_jobs=tuple(text for job in judged for text in far(topology, job)),
        jobs=sum(bool(job.gpus) for job in judged),
        notes=(
            *check.notes(node.name),
            *_uncompared(expected, node, site),
            *_passed_over(len(running) - len(judged), root),
        ),
        is_judged=not check.unjudged,
    )
    if arguments.format == "json":
        print(json.dumps(report.document(), indent=1))
    else:
        print("\n".join(map(one_line, report.lines())))
    return report.exit_code


def _uncompared(expected: Expected | Unknown, node: NodeName, site: Site) -> Iterator[str]:
    if isinstance(expected, Unknown) and (site.is_live or site.conf):
        yield (
            f"Type= and the number of GPUs are not compared: the Gres= of node {node} is not known "
            f"here ({expected.why}); --slurm-conf and --node-name name others"
        )


def _passed_over(number: int, root: Path) -> Iterator[str]:
    if number:
        yield f"{count(number, 'job')} passed over: {root / NOTES} does not tell the GPUs"
