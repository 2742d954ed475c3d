"""`affinityd plan`: what the daemon would answer, without one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from affinityd.answer import Reply, render
from affinityd.caller import this_process
from affinityd.cli import plan_options
from affinityd.cli.console import say
from affinityd.cli.machine import Machine
from affinityd.cli.parser import Parser, add_settings, load_settings
from affinityd.cli.table import aligned
from affinityd.cpuset import format_list
from affinityd.errors import InvalidRequestError, quote
from affinityd.plans import Options, RankPlan
from affinityd.request import FORMATS, PARAMETERS, parse_request
from affinityd.service import Node, answer

TABLE = "table"
NUMBERS = {"rank", "gpu", "node", "home", "cores"}
COLUMNS = ("rank", "gpu", "pci bus id", "node", "home", "locality", "cores", "cpulist")


def add_arguments(parser: Parser) -> None:
    """Add what the command takes."""
    plan_options.add_plan_options(parser, Options().mode)
    shown = "|".join((TABLE, *FORMATS))
    parser.add_argument("--format", metavar=shown, action="append", help=PARAMETERS["format"].help)
    parser.add_argument("--explain", action="store_true", help="say why, below each rank")
    add_settings(parser, ("root", "machine", "reserved_cpus"))


def run(arguments: argparse.Namespace) -> int:
    """Print the plan."""
    form = _format(arguments.format or [TABLE])
    request = parse_request(plan_options.given(arguments).items())
    settings = load_settings(arguments)
    machine = Machine(settings)
    machine.ask_drivers()
    caller = this_process() if machine.is_live else None  # on a replayed machine it means nothing
    reply = answer(Node(machine.read(), settings.reserved_cpus), request, caller)
    if form == TABLE:
        for line in _table(reply, explain=arguments.explain):
            print(line)
    else:
        print(render(reply, form), end="")
    if form != "json":
        for warning in reply.warnings:
            say(f"affinityd: {warning.code}: {warning.message}")
    return 0


def _format(said: list[str]) -> str:
    if len(said) > 1:
        raise InvalidRequestError("format is given twice; give it once")
    if said[0] not in (TABLE, *FORMATS):
        raise InvalidRequestError(
            f"format: {quote(said[0])} is not one of {', '.join((TABLE, *FORMATS))}"
        )
    return said[0]


def _table(reply: Reply, *, explain: bool) -> Iterator[str]:
    options = reply.request.options
    allowed = format_list(reply.allowed)
    yield f"{reply.node}: {options.mode}, share={reply.plan.share}, allowed CPUs {allowed}"
    rows = [_row(rank) for rank in reply.ranks]
    head, *lines = aligned(COLUMNS, rows, NUMBERS)
    yield head
    for rank, line in zip(reply.ranks, lines, strict=True):
        yield line
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
