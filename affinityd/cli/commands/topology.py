"""`affinityd topology`: the node as a tree, as JSON, and as a picture."""

from __future__ import annotations

import argparse

from affinityd.cli.console import wants_color
from affinityd.cli.parser import Parser, add_format, add_settings, load_settings
from affinityd.cli.render.topology import add_svg, draw, write_svg
from affinityd.discovery.machine import read_once
from affinityd.json_codec import dumps
from affinityd.topology.document import to_document


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
        for line in draw(topology, color=wants_color()):
            print(line)
    return 0
