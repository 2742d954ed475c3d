"""`affinityd slurm gres-conf`: prints a node's lines of gres.conf, or their diff from slurmd's."""

from __future__ import annotations

import argparse
import re

from affinityd.cli.console import say
from affinityd.cli.parser import Parser, add_settings, load_settings
from affinityd.discovery.machine import read_once
from affinityd.errors import InvalidRequestError
from affinityd.slurm.commands import CONF_FOLDERS, LocalSlurm, SlurmError, differences, find_slurm
from affinityd.slurm.gres_conf import GresConf
from affinityd.text import count, one_line, quote


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    text = "print this node's lines of gres.conf, or compare slurmd's with them"
    commands = parser.add_subparsers(dest="command", metavar="gres-conf", required=True, help=text)
    status = "exit status: 0: all lines are printed, or equal; 1: some are not; 2: not known"
    about = f"{text[0].upper()}{text[1:]}."
    command = commands.add_parser("gres-conf", description=about, epilog=status)
    command.add_argument(
        "--diff",
        action="store_true",
        help="print a diff from the lines of slurmd -G to these lines",
    )
    command.add_argument(
        "--node-name",
        metavar="NAMES",
        dest="nodes",
        type=_plain,
        help="begin each line with NodeName=NAMES: one name, or equal nodes like gpu[001-500]",
    )
    command.add_argument(
        "--type",
        metavar="TYPE[,TYPE...]",
        type=_plain,
        help=(
            "the Type= of all GPUs, or one for each GPU in the order of the lines; needed if "
            "scontrol does not know the types"
        ),
    )
    command.add_argument(
        "--slurm-conf",
        metavar="FILE",
        help="the slurm.conf of the slurmd and slurmctld that are asked (default: $SLURM_CONF, "
        f"else the first of {', '.join(CONF_FOLDERS)})",
    )
    command.add_argument(
        "--scope",
        choices=("node", "socket"),
        default="node",
        help="the cores of a GPU: its NUMA node's (default), or its package's",
    )
    add_settings(command, ("root", "machine"))


def _plain(text: str) -> str:
    """Read names that can stand in a line of gres.conf. Raises ArgumentTypeError.

    They are a node's name, a list of such names (gpu[01-04],gpu7), or types.
    """
    if not re.fullmatch(r"[^\s\"'#=\\,]+(,[^\s\"'#=\\,]+)*", text):
        raise argparse.ArgumentTypeError(f"{quote(text)} is not a name like gpu[01-04] or a100")
    return text


def run(arguments: argparse.Namespace) -> int:
    """Print the lines, or the diff. Return 1: lines are missing or differ; 2: that is not known."""
    settings = load_settings(arguments)
    topology = read_once(settings)
    slurm = find_slurm(arguments.slurm_conf, is_live=not settings.replays)
    if slurm is None and arguments.diff:
        raise InvalidRequestError(
            f"there is no slurm.conf in {', '.join(CONF_FOLDERS)}; name it with --slurm-conf"
        )
    gres = None
    why = ""
    nodes = arguments.nodes
    if slurm is not None:
        nodes = nodes or slurm.node_name(topology.name)
        try:
            gres = slurm.configured(nodes)
        except SlurmError as error:
            why = (
                f"the Gres= of {nodes} is not known: {error}; if it has a type, name it with --type"
            )
    types: tuple[str, ...] = ()
    if arguments.type:
        types = tuple(arguments.type.split(","))
    conf = GresConf(topology, arguments.scope, gres, types)
    if slurm is not None and arguments.diff:
        if why and not types:
            say(f"affinityd slurm gres-conf: {why}; types are not compared")
        return _diff(conf, slurm, nodes)
    for line in conf.lines(arguments.nodes):
        print(line)
    faults = _faults(conf)
    for fault in faults:
        say(f"affinityd slurm gres-conf: {fault}")
    if why and not types and not faults:
        say(f"affinityd slurm gres-conf: {why}")
    return int(bool(faults))


def _faults(conf: GresConf) -> list[str]:
    gpus = conf.topology.gpus
    if not gpus:
        return ["this node has no GPU"]
    all_gpus = count(len(gpus), "GPU")
    faults = []
    if conf.unknown:
        faults.append(f"the device files of {len(conf.unknown)} of {all_gpus} are not known")
    untyped = len(gpus) - len(conf.types.of)
    if untyped:
        faults.append(
            f"the types of {untyped} of {all_gpus} are not known: {conf.types.why}; name a type "
            "for each GPU with --type"
        )
    return faults


def _diff(conf: GresConf, slurm: LocalSlurm, node: str) -> int:
    """Print slurmd's errors and the diff. Return 0: no difference; 1: a difference; 2: unknown."""
    slurmd = slurm.slurmd_gres(node)
    for message in slurmd.messages:
        say(f"affinityd slurm gres-conf: {message}")
    if not slurmd.is_complete:
        return 2
    lines = differences(conf, slurmd)
    for line in lines:
        print(one_line(line))
    if conf.unknown:
        gpus = count(len(conf.topology.gpus), "GPU")
        unknown = f"the device files of {len(conf.unknown)} of {gpus} are not known"
        say(f"affinityd slurm gres-conf: {unknown}; their lines are not compared")
    if lines:
        return 1
    return 2 if conf.unknown else 0
