"""`affinityd topology`: the node as a tree or as JSON."""

from __future__ import annotations

import argparse
import os
import sys

from affinityd.cli.parser import Parser, add_format, add_settings, load_settings
from affinityd.cli.render import topology as drawing
from affinityd.discovery.machine import read_once
from affinityd.json_codec import dumps
from affinityd.topology.document import to_document


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    add_format(parser, "tree")
    add_settings(parser, ("root", "machine"))


def run(arguments: argparse.Namespace) -> int:
    """Print the node."""
    topology = read_once(load_settings(arguments))
    if arguments.format == "json":
        document = to_document(topology)
        print(dumps(document, indent=1, ensure_ascii=False))
    else:
        for line in drawing.draw(topology, color=wants_color()):
            print(line)
    return 0


def wants_color() -> bool:
    """Whether stdout is a terminal that takes colors, unless NO_COLOR is set (no-color.org)."""
    return (
        sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "dumb") != "dumb"
    )
