"""`affinityd slurm`: prints a node's lines of gres.conf, or checks them."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from affinityd.cli.console import say
from affinityd.cli.parser import Parser, add_format, add_settings, load_settings
from affinityd.config.settings import Settings
from affinityd.discovery.machine import read_once
from affinityd.errors import InvalidRequestError
from affinityd.slurm import slurmd
from affinityd.slurm.check import GresCheck
from affinityd.slurm.commands import (
    FOLDERS,
    LocalSlurm,
    expected_node,
    find_slurm,
    node_name,
)
from affinityd.slurm.cores import SCOPES
from affinityd.slurm.gres_conf import GresConf
from affinityd.slurm.jobs import NOTES, far, jobs
from affinityd.slurm.report import CheckReport
from affinityd.text import count, one_line, quote

COMMANDS = {
    "gres-conf": "print this node's lines of gres.conf",
    "check": ("ask slurmd what is wrong in gres.conf, and list jobs that are far from their GPUs"),
}

NO_NODES = set(" \t\n\"'#=\\")  #: characters that no node's name has
NO_NODE = NO_NODES | set(",[]")
NO_TYPE = NO_NODE | set(":()")


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    commands = parser.add_subparsers(dest="command", metavar="|".join(COMMANDS), required=True)
    gres_conf, check = (
        commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        for name, text in COMMANDS.items()
    )
    gres_conf.add_argument(
        "--node-name",
        metavar="NAMES",
        dest="nodes",
        type=partial(_name, NO_NODES, "names no nodes; write it like gpu[01-04]"),
        help="begin each line with NodeName=NAMES: one name, or equal nodes like gpu[001-500]",
    )
    gres_conf.add_argument(
        "--type",
        metavar="TYPE[,TYPE...]",
        type=_types,
        default=(),
        help=(
            "the Type= of all GPUs, or of each in the order of the lines, if neither "
            "scontrol nor slurmd knows it"
        ),
    )
    check.add_argument(
        "--node-name",
        metavar="NAME",
        dest="node",
        type=partial(_name, NO_NODE, "is not a node's name"),
        help="the node's name in slurm.conf (default: this host)",
    )
    check.add_argument(
        "--gres-conf",
        metavar="FILE",
        type=Path,
        help="a file for slurmd to read instead of its gres.conf",
    )
    add_format(check, "text")
    for command in (gres_conf, check):
        command.add_argument(
            "--slurm-conf",
            metavar="FILE",
            help="the slurm.conf of the slurmd and slurmctld that are asked (default: $SLURM_CONF, "
            f"else the first of {', '.join(FOLDERS)})",
        )
        command.add_argument(
            "--scope",
            choices=SCOPES,
            default="node",
            help="the cores of a GPU: its NUMA node's (default), or its package's",
        )
        add_settings(command, ("root", "machine"))


def run(arguments: argparse.Namespace) -> int:
    """Run one of the two."""
    return {"gres-conf": _gres_conf, "check": _check}[arguments.command](arguments)


def _name(strange: set[str], fault: str, text: str) -> str:
    if not text or strange & set(text):
        raise argparse.ArgumentTypeError(f"{quote(text)} {fault}")
    return text


def _types(text: str) -> tuple[str, ...]:
    kinds = tuple(text.split(","))
    if not all(kinds) or NO_TYPE & set("".join(kinds)):
        raise argparse.ArgumentTypeError(f"{quote(text)} is not a type; write it like a100")
    return kinds


def _gres_conf(arguments: argparse.Namespace) -> int:
    """Print the lines; 0: of every GPU, 1: not of all."""
    settings = load_settings(arguments)
    topology = read_once(settings)
    slurm = _slurm(settings, arguments.slurm_conf)
    own = node_name(slurm, topology.name) if slurm else topology.name
    names = arguments.nodes or own
    expected, why = expected_node(slurm, names) if slurm else (None, "")
    is_decided = expected is not None and len(expected.counts) < 2  # noqa: PLR2004 - types
    present: Mapping[str, str | None] = {}
    if slurm is not None and not is_decided:
        with suppress(InvalidRequestError):
            present = slurmd.ask(slurm, own).types
    right = GresConf(topology, arguments.scope, expected, present, arguments.type)
    for line in right.lines(arguments.nodes):
        print(line)
    faults = list(_lacking(right))
    for fault in faults:
        say(f"affinityd slurm gres-conf: {fault}")
    if why and not (faults or arguments.type):
        say(
            f"affinityd slurm gres-conf: the Gres= of node {names} is not known here "
            f"({why}); if it has a type, name it with --type"
        )
    return int(bool(faults))


def _lacking(right: GresConf) -> Iterator[str]:
    gpus, kinds = right.topology.gpus, right.types
    if not gpus:
        yield "this node has no GPU"
    if right.unknown:
        of_all = f"{len(right.unknown)} of {count(len(gpus), 'GPU')}"
        yield f"the device files of {of_all} are not known"
    if untyped := len(gpus) - len(kinds.of):
        yield (
            f"the types of {untyped} of {count(len(gpus), 'GPU')} are not known: {kinds.why}; "
            "name one for each with --type"
        )


def _slurm(settings: Settings, slurm_conf: str | None) -> LocalSlurm | None:
    """Return the Slurm to query: for another machine's topology only a named one."""
    is_live = settings.machine is None and os.path.realpath(settings.root) == "/"
    return find_slurm(slurm_conf, is_live=is_live)


def _check(arguments: argparse.Namespace) -> int:
    """Print the errors; 0: none, 1: some, 2: slurmd does not accept gres.conf."""
    settings = load_settings(arguments)
    topology = read_once(settings)
    root = Path(settings.root)
    slurm = _slurm(settings, arguments.slurm_conf)
    if slurm is None:
        raise InvalidRequestError(
            f"there is no slurm.conf in {', '.join(FOLDERS)}; name it with --slurm-conf"
        )
    node = arguments.node or node_name(slurm, topology.name)
    expected, why = expected_node(slurm, node)
    with slurm.with_gres_conf(arguments.gres_conf) as asked:
        gres = slurmd.ask(asked, node)
    check = GresCheck(gres, topology, arguments.scope, expected)
    # A built-in machine has no jobs: this node's jobs are not its jobs.
    running = [] if settings.machine else list(jobs(root))
    judged = [job for job in running if job.gpus is not None]
    notes = list(check.notes())
    if why:
        notes.append(
            f"Type= and the number of GPUs are not compared: the Gres= of node {node} is not known "
            f"here ({why}); give --slurm-conf or --node-name"
        )
    if passed := len(running) - len(judged):
        notes.append(f"{count(passed, 'job')} skipped: {root / NOTES} does not list the GPUs")
    report = CheckReport(
        node=node,
        gpus=len(topology.gpus),
        faults=gres.faults,
        findings=tuple(check.findings()),
        far_jobs=tuple(text for job in judged for text in far(topology, job, check.right.settings)),
        jobs=sum(bool(job.gpus) for job in judged),
        notes=tuple(notes),
        is_judged=check.is_judged,
    )
    if arguments.format == "json":
        print(json.dumps(report.document(), indent=1))
    else:
        print("\n".join(map(one_line, report.lines())))
    return report.exit_code
