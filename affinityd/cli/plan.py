"""`affinityd plan`: what the daemon would answer, without one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from affinityd.answer import Reply, render
from affinityd.caller import this_process
from affinityd.cli.console import say
from affinityd.cli.machine import Machine
from affinityd.cli.parser import Parser, add_settings, load_settings
from affinityd.cpuset import format_list
from affinityd.errors import InvalidRequestError, quote
from affinityd.plans import RankPlan
from affinityd.request import FORMATS, PARAMETERS, parse_request
from affinityd.service import Node, answer

TABLE = "table"
COLUMNS = ("rank", "gpu", "pci bus id", "node", "home", "locality", "cores", "cpulist")


def add_arguments(parser: Parser) -> None:
    """Add what the command takes."""
    for parameter in PARAMETERS.values():
        flag = f"--{parameter.name.replace('_', '-')}"
        choices = parameter.schema.get("enum")
        metavar = parameter.name.upper() if not choices else "|".join(choices)
        if parameter.schema["type"] == "boolean":
            # A flag alone means true; given twice it is refused, as by the API.
            parser.add_argument(flag, nargs="?", const="true", action="append", help=parameter.help)
        elif parameter.name == "format":
            shown = "|".join((TABLE, *FORMATS))
            parser.add_argument(flag, metavar=shown, action="append", help=parameter.help)
        else:
            parser.add_argument(flag, metavar=metavar, action="append", help=parameter.help)
    parser.add_argument("--explain", action="store_true", help="say why, below each rank")
    add_settings(parser, ("root", "machine", "reserved_cpus"))


def run(arguments: argparse.Namespace) -> int:
    """Print the plan."""
    pairs = [(name, text) for name in PARAMETERS for text in getattr(arguments, name) or ()]
    for form in arguments.format or ():
        if form not in (TABLE, *FORMATS):
            raise InvalidRequestError(
                f"format: {quote(form)} is not one of {', '.join((TABLE, *FORMATS))}"
            )
    as_table = arguments.format in (None, [TABLE])
    request = parse_request(pair for pair in pairs if not (as_table and pair[0] == "format"))
    settings = load_settings(arguments)
    machine = Machine(settings)
    machine.ask_drivers()
    caller = this_process() if machine.is_live else None  # on a replayed machine it means nothing
    reply = answer(Node(machine.read(), settings.reserved_cpus), request, caller)
    if as_table:
        for line in _table(reply, explain=arguments.explain):
            print(line)
    else:
        print(render(reply, request.format or "json"), end="")
    if as_table or request.format != "json":
        for warning in reply.warnings:
            say(f"affinityd: {warning.code}: {warning.message}")
    return 0


def _table(reply: Reply, *, explain: bool) -> Iterator[str]:
    options = reply.request.options
    allowed = format_list(reply.allowed)
    yield f"{reply.node}: {options.mode}, share={reply.plan.share}, allowed CPUs {allowed}"
    rows = [_row(rank) for rank in reply.ranks]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    yield _aligned(COLUMNS, widths)
    for rank, row in zip(reply.ranks, rows, strict=True):
        yield _aligned(row, widths)
        if explain:
            yield from (f"      {reason}" for reason in rank.reasons)


def _row(rank: RankPlan) -> tuple[str, ...]:
    return (
        str(rank.rank),
        str(rank.gpu.index),
        rank.gpu.pci_bus_id,
        "?" if rank.gpu.numa_node is None else str(rank.gpu.numa_node),
        "-" if rank.home_node is None else str(rank.home_node),
        rank.locality,
        str(rank.physical_cores),
        format_list(rank.cpus),
    )


def _aligned(cells: tuple[str, ...], widths: list[int]) -> str:
    numbers = {"rank", "gpu", "node", "home", "cores"}
    return "  ".join(
        cell.rjust(width) if name in numbers else cell.ljust(width)
        for name, cell, width in zip(COLUMNS, cells, widths, strict=True)
    ).rstrip()
