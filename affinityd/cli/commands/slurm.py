"""`affinityd slurm`: prints a node's lines of gres.conf, or compares them with Slurm's."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from affinityd.cli.console import say
from affinityd.cli.parser import Parser, add_format, add_settings, load_settings
from affinityd.config.settings import Settings
from affinityd.discovery.machine import read_once
from affinityd.errors import InvalidRequestError
from affinityd.slurm.check import JobsReport, counts, differences, in_slurms_numbers, judge_jobs
from affinityd.slurm.commands import FOLDERS, LocalSlurm, SlurmError, find_slurm
from affinityd.slurm.cores import SCOPES
from affinityd.slurm.gres_conf import GresConf, Present
from affinityd.text import count, one_line, quote

COMMANDS = {
    "gres-conf": "print this node's lines of gres.conf",
    "check": "compare Slurm's GPUs with the lines of gres-conf, and list jobs far from their GPUs",
}

NO_NODES = " \t\n\"'#=\\"  #: characters that no list of nodes has
NO_NODE = f"{NO_NODES},[]"
NO_TYPES = f"{NO_NODES}[]:()"


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
        type=_without(NO_NODES, "names no nodes; write it like gpu[01-04]"),
        help="begin each line with NodeName=NAMES: one name, or equal nodes like gpu[001-500]",
    )
    gres_conf.add_argument(
        "--type",
        metavar="TYPE[,TYPE...]",
        type=_without(NO_TYPES, "is not a type; write it like a100"),
        help=(
            "the Type= of all GPUs, or of each in the order of the lines, if neither "
            "scontrol nor slurmd knows it"
        ),
    )
    check.add_argument(
        "--node-name",
        metavar="NAME",
        dest="node",
        type=_without(NO_NODE, "is not a node's name"),
        help="the node's name in slurm.conf (default: this host)",
    )
    check.add_argument(
        "--cluster",
        action="store_true",
        help="the state and the jobs of all nodes; jobs are judged on nodes like this one",
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
    """Run `gres-conf` or `check`."""
    return {"gres-conf": _gres_conf, "check": _check}[arguments.command](arguments)


def _without(strange: str, fault: str) -> Callable[[str], str]:
    """Return a reader of texts, parted by commas, that are not empty and lack these characters."""

    def read(text: str) -> str:
        if not all(text.split(",")) or {*strange} & {*text}:
            raise argparse.ArgumentTypeError(f"{quote(text)} {fault}")
        return text

    return read


def _gres_conf(arguments: argparse.Namespace) -> int:
    """Print the lines. Return 0 if every GPU has one, else 1."""
    settings = load_settings(arguments)
    topology = read_once(settings)
    slurm = _find_slurm(settings, arguments.slurm_conf)
    this_node = slurm.node_name(topology.name) if slurm else topology.name
    gres, why = None, ""
    present: Present = {}
    if slurm is not None:
        try:
            gres = slurm.configured(arguments.nodes or this_node)
        except SlurmError as error:
            why = str(error)
        if gres is None or len(gres.counts) > 1:
            with suppress(SlurmError):
                present = slurm.slurmd_gres(this_node).types
    types = tuple(arguments.type.split(",")) if arguments.type else ()
    conf = GresConf(topology, arguments.scope, gres, present, types)
    for line in conf.lines(arguments.nodes):
        print(line)
    faults = list(_faults(conf))
    for fault in faults:
        say(f"affinityd slurm gres-conf: {fault}")
    if why and not (faults or arguments.type):
        say(
            f"affinityd slurm gres-conf: the Gres= of {arguments.nodes or this_node} is not known: "
            f"{why}; if it has a type, name it with --type"
        )
    return int(bool(faults))


def _faults(conf: GresConf) -> Iterator[str]:
    gpus = conf.topology.gpus
    if not gpus:
        yield "this node has no GPU"
    if conf.unknown:
        of_all = f"{len(conf.unknown)} of {count(len(gpus), 'GPU')}"
        yield f"the device files of {of_all} are not known"
    if untyped := len(gpus) - len(conf.types.of):
        yield (
            f"the types of {untyped} of {count(len(gpus), 'GPU')} are not known: {conf.types.why}; "
            "name one for each with --type"
        )


def _find_slurm(
    settings: Settings, slurm_conf: str | None, *, is_own: bool = False
) -> LocalSlurm | None:
    """Return the Slurm to ask. Without `is_own`, another machine needs a named slurm.conf."""
    is_live = settings.machine is None and os.path.realpath(settings.root) == "/"
    return find_slurm(slurm_conf, is_live=is_live or is_own)


def _check(arguments: argparse.Namespace) -> int:
    """Print the differences. Return 0 without any, 1 with some, 2 if slurmd refuses gres.conf."""
    settings = load_settings(arguments)
    topology = read_once(settings)
    slurm = _find_slurm(settings, arguments.slurm_conf, is_own=arguments.cluster)
    if slurm is None and arguments.cluster:
        slurm = LocalSlurm(Path(FOLDERS[0], "slurm.conf"))  # scontrol may find one by DNS
    if slurm is None:
        raise InvalidRequestError(
            f"there is no slurm.conf in {', '.join(FOLDERS)}; name it with --slurm-conf"
        )
    findings: list[str] = []
    notes: list[str] = []
    jobs, gpus, is_complete = JobsReport(), in_slurms_numbers(topology), True
    if arguments.cluster:
        nodes = {node.name: node for node in slurm.nodes() if node.gres.counts}
    else:
        name = arguments.node or slurm.node_name(topology.name)
        with slurm.with_gres_conf(arguments.gres_conf) as with_file:
            slurmd = with_file.slurmd_gres(name)
        nodes = {node.name: node for node in slurm.nodes(name)}
        conf = GresConf(topology, arguments.scope, slurm.configured(name), slurmd.types)
        findings += differences(conf, slurmd)
        gpus, is_complete = in_slurms_numbers(topology, slurmd), slurmd.is_complete
        if conf.unknown:
            unknown = count(len(conf.unknown), "GPU")
            notes.append(f"the device files of {unknown} are not known: they are not compared")
        if arguments.gres_conf is None:
            findings += counts(conf, next(iter(nodes.values())))
    if arguments.gres_conf is None:  # of another file slurmctld knows nothing
        for node in nodes.values():
            (findings if node.is_refused else notes if node.reason else []).append(
                f"{node.name}: {node}"
            )
        jobs = judge_jobs(slurm, topology, nodes, gpus)
    if jobs.left_out:
        notes.append(
            f"jobs on {', '.join(jobs.left_out)} are not judged: cores or GPUs are other numbers "
            "than this machine's; --machine or --root names another"
        )
    if arguments.format == "json":
        document = {
            "nodes": [*nodes],
            "findings": findings,
            "jobs": {"judged": jobs.judged, "findings": [*jobs.far]},
            "notes": notes,
        }
        print(json.dumps(document, indent=1))
    else:
        lines = [*findings, *jobs.far, *(f"note: {note}" for note in notes)]
        print("\n".join(map(one_line, [*lines, _sum([*nodes], findings, jobs)])))
    return int(bool(findings or jobs.far)) if is_complete else 2


def _sum(nodes: Sequence[str], findings: Sequence[str], jobs: JobsReport) -> str:
    about = nodes[0] if len(nodes) == 1 else count(len(nodes), "node")
    wrong = f"{about}: {count(len(findings), 'finding')}, {count(len(jobs.far), 'far GPU')} of jobs"
    fits = f"{about}: Slurm has the GPUs as they are"
    judged = f"; {count(jobs.judged, 'running job')} judged" if jobs.judged else ""
    return f"{wrong if findings or jobs.far else fits}{judged}"
