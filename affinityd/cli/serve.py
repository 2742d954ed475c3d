"""`affinityd serve`: the daemon."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from affinityd import settings
from affinityd.audit.auditor import Auditor
from affinityd.audit.holders import Holders
from affinityd.cli.machine import Machine
from affinityd.cli.parser import Parser, add_settings, load_settings
from affinityd.discovery import nvml, nvml_processes
from affinityd.failures import Unanswered

if TYPE_CHECKING:
    from affinityd.daemon import Enforce

TOPOLOGY, PROCESSES = "topology", "processes"  #: what NVML is asked for


def add_arguments(parser: Parser) -> None:
    """Add what the command takes."""
    add_settings(parser, settings.NAMES)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    chosen = load_settings(arguments)
    nvml_failures = Unanswered(TOPOLOGY, PROCESSES)
    machine = Machine(chosen, nvml_failures.counting(TOPOLOGY, nvml.ask))
    machine.begin_to_ask()
    from affinityd import daemon  # noqa: PLC0415 - takes about as long as a driver to answer

    auditor = Auditor(Holders(nvml_failures.counting(PROCESSES, nvml_processes.ask)))
    daemon.run(chosen, machine, auditor, _enforce(chosen), nvml_failures=nvml_failures.counts)
    return 0


def _enforce(chosen: settings.Settings) -> Enforce | None:
    """Return what enforces; None: nothing is to."""
    if chosen.enforce == "off":
        return None
    from affinityd.enforcement import Enforcement  # noqa: PLC0415 - most daemons enforce nothing

    return Enforcement
