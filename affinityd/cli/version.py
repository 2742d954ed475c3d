"""`affinityd version`."""

from __future__ import annotations

import argparse

from affinityd import __version__
from affinityd.cli.parser import Parser


def add_arguments(_parser: Parser) -> None:
    """Add what the command takes: nothing."""


def run(_arguments: argparse.Namespace) -> int:
    """Print the version."""
    print(f"affinityd {__version__}")
    return 0
