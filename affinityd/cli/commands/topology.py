"""`affinityd topology`: the node as a tree, as JSON, and as a picture."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from affinityd.cli.console import aligned
from affinityd.cli.parser import Parser, add_format, add_settings, load_settings
from affinityd.discovery.machine import read_once
from affinityd.errors import OutputError
from affinityd.json_codec import dumps
from affinityd.topology.document import to_document
from affinityd.topology.model import Topology
from affinityd.topology.words import tree

if TYPE_CHECKING:
    from affinityd.picture import Marks


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    add_format(parser, "tree")
    add_svg(parser)
    add_settings(parser, ("root", "machine", "reserved_cpus"))


def run(arguments: argparse.Namespace) -> int:
    """Print the node."""
    settings = load_settings(arguments)
    topology = read_once(settings)
    if arguments.svg is not None:
        from affinityd.picture import Marks  # noqa: PLC0415 - few ask for a picture

        write_svg(arguments.svg, topology, Marks(settings.reserved_cpus))
    if arguments.format == "json":
        print(dumps(to_document(topology), indent=1, ensure_ascii=False))
    else:
        for line in describe(topology):
            print(line)
    return 0


def describe(topology: Topology) -> Iterator[str]:
    """Yield the lines of a tree, of the distances between nodes, and of notices."""
    yield from tree(topology)
    numbers = [number for number in topology.nodes_with_cpus if number is not None]
    if len(numbers) > 1:
        heads = [str(number) for number in numbers]
        rows = []
        for number in numbers:
            distances = topology.node_of[number].distances
            rows.append([f"node {number}", *(str(distances.get(to, "?")) for to in numbers)])
        yield from ("", *aligned(["distance", *heads], rows, heads))
    if topology.notices:
        yield ""
    for notice in topology.notices:
        yield f"note: {notice}"


def add_svg(parser: Parser) -> None:
    """Add --svg."""
    parser.add_argument("--svg", metavar="FILE", type=Path, help="also draw a picture, as SVG")


def write_svg(path: Path, topology: Topology, marks: Marks) -> None:
    """Write the picture with its marks. Raises OutputError."""
    from affinityd.picture import draw  # noqa: PLC0415 - few ask for a picture

    try:
        path.write_text(draw(topology, marks), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from None
