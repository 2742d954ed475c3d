"""`affinityd snapshot`: the files that a plan needs, to replay this node anywhere."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from affinityd.cli.parser import Parser, add_settings, load_settings
from affinityd.discovery.nvml import ask
from affinityd.discovery.tree import open_tree
from affinityd.snapshot import snapshot_nvml, write_snapshot


def add_arguments(parser: Parser) -> None:
    """Add what the command takes."""
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="like node.tar.xz")
    add_settings(parser, ("root",))


def run(arguments: argparse.Namespace) -> int:
    """Write the archive."""
    tree = open_tree(load_settings(arguments).root)
    report = ask() if tree.live else snapshot_nvml(tree)
    output = Path(arguments.output)
    write_snapshot(tree, report, output)
    print(f"{output}: {output.stat().st_size} bytes; replay it with --root", file=sys.stderr)
    return 0
