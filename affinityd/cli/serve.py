"""`affinityd serve`: the daemon."""

from __future__ import annotations

import argparse

from affinityd import daemon, settings
from affinityd.audit.auditor import Auditor
from affinityd.audit.holders import Holders
from affinityd.cli.machine import Machine
from affinityd.cli.parser import Parser, add_settings, load_settings
from affinityd.discovery import nvml_processes


def add_arguments(parser: Parser) -> None:
    """Add what the command takes."""
    add_settings(parser, settings.NAMES)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    chosen = load_settings(arguments)
    daemon.run(chosen, Machine(chosen), Auditor(Holders(nvml_processes.ask)))
    return 0
