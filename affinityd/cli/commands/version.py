"""`affinityd version`."""

from __future__ import annotations

import argparse
import json

from affinityd import __version__
from affinityd.cli.parser import Parser, add_format


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    add_format(parser, "text")


def run(arguments: argparse.Namespace) -> int:
    """Print the version."""
    is_json = arguments.format == "json"
    print(json.dumps({"version": __version__}) if is_json else f"affinityd {__version__}")
    return 0
