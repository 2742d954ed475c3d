"""`affinityd slurm`: prints a node's lines of gres.conf, or compares them with Slurm's."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

from affinityd.cli.console import say
from affinityd.cli.parser import Parser, add_format, add_settings, load_settings
from affinityd.discovery.machine import read_once
from affinityd.errors import InvalidRequestError
from affinityd.slurm.check import JobsReport, counts, differences, in_slurms_numbers, judge_jobs
from affinityd.slurm.commands import FOLDERS, LocalSlurm, SlurmError, find_slurm
from affinityd.slurm.cores import SCOPES
from affinityd.slurm.gres_conf import GresConf
from affinityd.text import count, one_line, quote

COMMANDS = {
    "gres-conf": "print this node's lines of gres.conf",
    "check": "compare Slurm's GPUs with the lines of gres-conf, and list jobs far from their GPUs",
}

#: A name of a node, a list of such (gpu[01-04],gpu7), or types: words without a field's characters.
_is_plain = re.compile(r"[^\s\"'#=\\,]+(,[^\s\"'#=\\,]+)*").fullmatch


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
        type=_plain,
        help="begin each line with NodeName=NAMES: one name, or equal nodes like gpu[001-500]",
    )
    gres_conf.add_argument(
        "--type",
        metavar="TYPE[,TYPE...]",
        type=_plain,
        help=(
            "the Type= of all GPUs, or of each in the order of the lines, if scontrol does not "
            "know it"
        ),
    )
    check.add_argument(
        "--node-name",
        metavar="NAME",
        dest="node",
        type=_plain,
        help="the node's name in slurm.conf (default: this host)",
    )
    check.add_argument(
        "--cluster",
        action="store_true",
        help="the state and the jobs of all nodes; jobs are judged on nodes like this one",
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
    """Run `gres-conf` or `check`."""
    return _gres_conf(arguments) if arguments.command == "gres-conf" else _check(arguments)


def _plain(text: str) -> str:
    """Read names that can stand in a line of gres.conf. Raises ArgumentTypeError."""
    if not _is_plain(text):
        raise argparse.ArgumentTypeError(f"{quote(text)} is not a name, as gpu[01-04] or a100")
    return text


def _gres_conf(arguments: argparse.Namespace) -> int:
    """Print the lines. Return 0 if every GPU has one, else 1."""
    settings = load_settings(arguments)
    topology = read_once(settings)
    slurm = find_slurm(arguments.slurm_conf, is_live=not settings.replays)
    gres, why = None, ""
    if slurm is not None:
        nodes = arguments.nodes or slurm.node_name(topology.name)
        try:
            gres = slurm.configured(nodes)
        except SlurmError as error:
            why = (
                f"the Gres= of {nodes} is not known: {error}; if it has a type, name it with --type"
            )
    types = tuple(arguments.type.split(",")) if arguments.type else ()
    conf = GresConf(topology, arguments.scope, gres, types)
    for line in conf.lines(arguments.nodes):
        print(line)
    all_gpus = count(len(topology.gpus), "GPU")
    faults = [] if topology.gpus else ["this node has no GPU"]
    if conf.unknown:
        faults.append(f"the device files of {len(conf.unknown)} of {all_gpus} are not known")
    if untyped := len(topology.gpus) - len(conf.types.of):
        faults.append(
            f"the types of {untyped} of {all_gpus} are not known: {conf.types.why}; name one for "
            "each with --type"
        )
    for fault in faults or ([why] if why and not types else []):
        say(f"affinityd slurm gres-conf: {fault}")
    return int(bool(faults))


def _check(arguments: argparse.Namespace) -> int:
    """Print the differences. Return 0 without any, 1 with some, 2 if slurmd refuses gres.conf."""
    settings = load_settings(arguments)
    topology = read_once(settings)
    slurm = find_slurm(arguments.slurm_conf, is_live=arguments.cluster or not settings.replays)
    if slurm is None and arguments.cluster:
        slurm = LocalSlurm(Path(FOLDERS[0], "slurm.conf"))  # scontrol may find one by DNS
    if slurm is None:
        raise InvalidRequestError(
            f"there is no slurm.conf in {', '.join(FOLDERS)}; name it with --slurm-conf"
        )
    findings: list[str] = []
    notes: list[str] = []
    if arguments.cluster:
        nodes = [node for node in slurm.nodes() if node.gres]
        gpus, is_complete = in_slurms_numbers(topology), True
    else:
        name = arguments.node or slurm.node_name(topology.name)
        slurmd, nodes = slurm.slurmd_gres(name), slurm.nodes(name)
        gpus, is_complete = in_slurms_numbers(topology, slurmd), slurmd.is_complete
        conf = GresConf(topology, arguments.scope, nodes[0].configured)
        findings += [*differences(conf, slurmd), *counts(conf, nodes[0])]
        if conf.unknown:
            unknown = count(len(conf.unknown), "GPU")
            notes.append(f"the device files of {unknown} are not known: they are not compared")
    findings += [f"{node.name}: {node}" for node in nodes if node.is_refused]
    notes += [f"{node.name}: {node}" for node in nodes if node.reason and not node.is_refused]
    jobs = judge_jobs(slurm, topology, nodes, gpus)
    if jobs.left_out:
        notes.append(
            f"jobs on {', '.join(jobs.left_out)} are not judged: cores or GPUs are other numbers "
            "than this machine's; --machine or --root names another"
        )
    if arguments.format == "json":
        document = {
            "nodes": [node.name for node in nodes],
            "findings": findings,
            "jobs": {"judged": jobs.judged, "findings": [*jobs.far]},
            "notes": notes,
        }
        print(json.dumps(document, indent=1))
    else:
        lines = [*findings, *jobs.far, *(f"note: {note}" for note in notes)]
        names = [node.name for node in nodes]
        print("\n".join(map(one_line, [*lines, _summary(names, len(findings), jobs)])))
    return int(bool(findings or jobs.far)) if is_complete else 2


def _summary(nodes: Sequence[str], findings: int, jobs: JobsReport) -> str:
    about = nodes[0] if len(nodes) == 1 else count(len(nodes), "node")
    wrong = f"{count(findings, 'finding')}, {count(len(jobs.far), 'far GPU')} of jobs"
    result = wrong if findings or jobs.far else "Slurm has the GPUs as they are"
    judged = f"; {count(jobs.judged, 'running job')} judged" if jobs.judged else ""
    return f"{about}: {result}{judged}"
