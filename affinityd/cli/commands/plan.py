"""`affinityd plan`: computes the answer of a daemon without a daemon."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from affinityd.cli.commands.topology import add_svg, write_svg
from affinityd.cli.console import aligned, say
from affinityd.cli.parser import (
    PLAN_OPTIONS,
    Parser,
    add_plan_options,
    add_settings,
    load_settings,
    plan_options,
)
from affinityd.client import local_plan
from affinityd.client.process import ProcessContext
from affinityd.cpuset import CpuSet, format_list, parse_list, several
from affinityd.discovery.machine import Machine
from affinityd.errors import InvalidRequestError, NoSuchGpuError
from affinityd.planner import PlanWarning
from affinityd.request.formats import render
from affinityd.request.parameters import FORMATS, PARAMETERS, parse_query
from affinityd.request.resolve import Caller, Reply, answer
from affinityd.request.task import visible_lists
from affinityd.text import quote
from affinityd.topology.model import Node, Topology

PRINTED_FORMATS = ("table", *FORMATS)
PLAN_COMMAND_OPTIONS = (*PLAN_OPTIONS, "gpus_per_rank")


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    add_plan_options(parser, "the plan", PLAN_COMMAND_OPTIONS)
    text = f"{PARAMETERS['format'].help}: {', '.join(PRINTED_FORMATS)}"
    parser.add_argument("--format", action="append", help=text)
    text = "the same as --format json"
    parser.add_argument("--json", dest="format", action="append_const", const="json", help=text)
    parser.add_argument("--explain", action="store_true", help="print the reasons below each rank")
    add_svg(parser)
    text = "choose GPUs for each rank, near the CPUs that --cpus-of gives it"
    parser.add_argument(
        "--choose-gpu", action="append_const", const="gpu", dest="choose", help=text
    )
    text = "the CPUs of a rank, like 0-15; give it for each rank of the node, in their order"
    parser.add_argument("--cpus-of", metavar="LIST", action="append", default=[], help=text)
    # For scripts: print a daemon's answer to --query, from the node.json that the daemon left.
    parser.add_argument("--node-file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--query", action="append", default=[], help=argparse.SUPPRESS)
    add_settings(parser, ("root", "machine", "reserved_cpus"), shown=("machine",))


def run(arguments: argparse.Namespace) -> int:
    """Print the plan. Raises AffinityError."""
    chosen = plan_options(arguments, (*PLAN_COMMAND_OPTIONS, "format", "choose"))
    if arguments.node_file is not None or arguments.query:
        print(_answer_of_file(arguments, chosen), end="")
        return 0
    form = chosen.pop("format", "table")
    if form not in PRINTED_FORMATS:
        raise InvalidRequestError(
            f"format: {quote(form)} is not one of {', '.join(PRINTED_FORMATS)}"
        )
    request = parse_query(chosen.items())
    if bool(arguments.cpus_of) != bool(request.choose):
        raise InvalidRequestError(
            "--choose-gpu and --cpus-of go together: give --cpus-of LIST once for each rank"
        )
    if request.choose and {"rank", "ranks", "job", "cpuset"} & chosen.keys():
        raise InvalidRequestError("--cpus-of names all ranks and CPUs; give no --ranks or --cpuset")
    settings = load_settings(arguments)
    machine = Machine(settings)
    machine.query_drivers()
    process = None
    caller = None
    if machine.is_live:
        process = ProcessContext.of_self()
        caller = Caller(process.mask, process.cpuset)
    node = Node(machine.read(), settings.reserved_cpus, replayed=settings.replays)
    if not node.topology.gpus and machine.is_live:
        raise NoSuchGpuError("this machine has no GPU; --machine plans on another, like dgx-a100")
    if request.choose:
        masks = tuple(_cpus_of(text, node.topology) for text in arguments.cpus_of)
        request = request._replace(task=replace(request.task, masks=masks))
    if process and request.task.visible is None:  # exec and bind send these, too
        task = replace(request.task, lists=visible_lists(process.environ or {}))
        request = request._replace(task=task)
    reply = answer(node, request, caller)
    if arguments.svg is not None:
        from affinityd.picture import marks_of  # noqa: PLC0415 - few ask for a picture

        write_svg(arguments.svg, node.topology, marks_of(reply, node.reserved))
    _print(reply, form, explain=arguments.explain)
    return 0


def _cpus_of(text: str, topology: Topology) -> CpuSet:
    try:
        cpus = parse_list(text)
    except ValueError as error:
        raise InvalidRequestError(f"--cpus-of: {error}") from None
    if not cpus or not cpus <= topology.online:
        online = format_list(topology.online)
        raise InvalidRequestError(f"--cpus-of: {quote(text)} is not within online CPUs {online}")
    return cpus


def _print(reply: Reply, form: str, *, explain: bool) -> None:
    if form == "table":
        print("\n".join(_table(reply, explain=explain)))
    else:
        text = render(reply, form)
        print(text, end="")
        if not text:
            no_devices = "the plan has no active device of InfiniBand, RoCE or EFA"
            say(f"affinityd: format {form}: {no_devices}")
    if form != "json":
        for line in _warnings(reply):
            say(f"affinityd: {line}")


def _answer_of_file(arguments: argparse.Namespace, chosen: Mapping[str, str]) -> str:
    if arguments.node_file is None:
        raise InvalidRequestError("--query is for --node-file; without it, give --gpus, --mode, …")
    if chosen or arguments.explain or arguments.svg is not None:
        raise InvalidRequestError("--node-file takes no option but --query NAME=VALUE")
    pairs = [text.partition("=")[::2] for text in arguments.query]
    return local_plan.answer_query(arguments.node_file, pairs)


def _warnings(reply: Reply) -> Iterator[str]:
    """Yield a line for each warning. Warnings of one code for several ranks share a line."""
    alike: dict[str, list[PlanWarning]] = {}
    for warning in reply.warnings:
        key = warning.message if warning.rank is None else warning.code
        alike.setdefault(key, []).append(warning)
    for first, *others in alike.values():
        line = f"{first.code}: {first.message}"
        ranks = [warning.rank for warning in others if warning.rank is not None]
        if ranks:
            line += f"; likewise {several('rank', ranks)}"
        yield line


def _table(reply: Reply, *, explain: bool) -> Iterator[str]:
    options = reply.request.options
    allowed = format_list(reply.allowed)
    yield f"{reply.node}: {options.mode}, share={reply.plan.share}, allowed CPUs {allowed}"
    columns = ["rank", "gpu", "pci bus id", "node", "home", "locality", "cores", "cpulist"]
    if any(reply.nics.values()):
        columns.append("nics")
    rows = []
    for rank in reply.ranks:
        node = "?" if rank.gpu.numa_node is None else str(rank.gpu.numa_node)
        home = "-" if rank.home_node is None else str(rank.home_node)
        cells = [str(rank.rank), str(rank.gpu.index), rank.gpu.pci_bus_id, node, home]
        cells += [rank.locality, str(rank.physical_cores), format_list(rank.cpus)]
        nics = ",".join(nic.port.device for nic in reply.nics[rank.gpu.key]) or "-"
        rows.append([*cells, nics][: len(columns)])
    head, *lines = aligned(columns, rows, {"rank", "gpu", "node", "home", "cores"})
    yield head
    for rank, line in zip(reply.ranks, lines, strict=True):
        yield line
        if explain:
            for reason in rank.reasons:
                yield f"      {reason}"
