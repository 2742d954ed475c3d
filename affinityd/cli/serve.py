"""`affinityd serve`: the daemon."""

from __future__ import annotations

import argparse
from dataclasses import replace

from affinityd import daemon, settings, switch
from affinityd.audit.auditor import Auditor
from affinityd.audit.holders import Holders
from affinityd.cli.machine import Machine
from affinityd.cli.parser import Parser, add_settings, load_settings
from affinityd.discovery import nvml_processes
from affinityd.enforce.model import WAYS


def add_arguments(parser: Parser) -> None:
    """Add what the command takes."""
    add_settings(parser, settings.NAMES)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    chosen = _narrowed(load_settings(arguments), switch.chosen())
    auditor = Auditor(Holders(nvml_processes.ask))
    daemon.run(chosen, Machine(chosen), auditor, _enforce(chosen))
    return 0


def _narrowed(chosen: settings.Settings, said: str) -> settings.Settings:
    """Return the settings with the switch: it pins no more from outside than clients may."""
    way = WAYS[min(WAYS.index(chosen.enforce), switch.SWITCHES.index(said))]
    return replace(chosen, switch=said, enforce=way)


def _enforce(chosen: settings.Settings) -> daemon.Enforce | None:
    """Return what enforces; None: nothing is to."""
    if chosen.enforce == "off":
        return None
    from affinityd.enforcement import Enforcement  # noqa: PLC0415 - most daemons enforce nothing

    return Enforcement
