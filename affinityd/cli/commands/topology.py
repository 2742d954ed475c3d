"""`affinityd topology`: the node as a tree, as JSON, and as a picture.

Each output imports its own modules: imports take most of the time.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

import argparse

from affinityd.cli.parser import Parser, add_format, add_settings, load_settings
from affinityd.cli.render.topology import add_svg, write_svg
from affinityd.discovery.machine import read_once


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
        from affinityd.picture import Marks

        write_svg(arguments.svg, topology, Marks(settings.reserved_cpus))
    if arguments.format == "json":
        from affinityd.json_codec import dumps
        from affinityd.topology.document import to_document

        document = to_document(topology)
        print(dumps(document, indent=1, ensure_ascii=False))
    else:
        from affinityd.cli.console import wants_color
        from affinityd.cli.render import topology as drawing

        for line in drawing.draw(topology, color=wants_color()):
            print(line)
    return 0
