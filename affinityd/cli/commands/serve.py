"""`affinityd serve`: the daemon."""

from __future__ import annotations

import argparse
from dataclasses import replace

from affinityd.audit.auditor import Auditor
from affinityd.audit.sources.holders import HolderSources
from affinityd.cli.parser import Parser, add_settings, load_settings
from affinityd.config import file, settings, switch
from affinityd.discovery.machine import Machine
from affinityd.discovery.nvml import gpus, processes
from affinityd.discovery.nvml.failures import NvmlFailures

TOPOLOGY, PROCESSES = "topology", "processes"  #: what NVML is asked for


def add_arguments(parser: Parser) -> None:
    """Add what the command takes."""
    add_settings(parser, settings.NAMES)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    chosen = narrowed(load_settings(arguments), file.chosen_switch())
    nvml_failures = NvmlFailures(TOPOLOGY, PROCESSES)
    machine = Machine(chosen, nvml_failures.counting(TOPOLOGY, gpus.query))
    machine.start_query()
    from affinityd.daemon import main  # noqa: PLC0415 - takes about as long as a driver to answer

    holders = HolderSources(nvml_failures.counting(PROCESSES, processes.query))
    auditor = Auditor(holders, reserved=chosen.reserved_cpus)
    main.run(chosen, machine, auditor.scan, nvml_failures=nvml_failures.counts)
    return 0


def narrowed(chosen: settings.Settings, said: str) -> settings.Settings:
    """Return the settings with the switch: it pins no more from outside than clients may."""
    is_free = said == switch.ON or chosen.enforce == settings.OFF
    return replace(chosen, switch=said, enforce=chosen.enforce if is_free else said)
