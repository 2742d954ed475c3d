"""`affinityd snapshot`: captures the files that a plan needs, to replay this node anywhere."""

from __future__ import annotations

import argparse
from pathlib import Path

from affinityd.cli.console import say
from affinityd.cli.parser import Parser, add_settings, load_settings
from affinityd.discovery.machine import Machine
from affinityd.discovery.snapshot import write_snapshot
from affinityd.errors import OutputError


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="like node.tar.xz")
    add_settings(parser, ("root",))


def run(arguments: argparse.Namespace) -> int:
    """Write the archive."""
    output = Path(arguments.output)
    machine = Machine(load_settings(arguments))
    machine.query_drivers()
    try:
        write_snapshot(machine.tree, machine.report, output)
    except OSError as error:
        raise OutputError(f"{output} cannot be written: {error.strerror}") from None
    say(f"{output}: {output.stat().st_size} bytes; unpack it, and replay the folder with --root")
    return 0
