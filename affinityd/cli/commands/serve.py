"""`affinityd serve`: the daemon."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

from affinityd.audit.auditor import Auditor
from affinityd.audit.sources.holders import HolderSources
from affinityd.cli.parser import Parser, add_settings, load_settings
from affinityd.config import file, settings, switch
from affinityd.discovery.machine import Machine
from affinityd.discovery.nvml import gpus, processes
from affinityd.discovery.nvml.report import R

TOPOLOGY, PROCESSES = "topology", "processes"  #: the purpose of a call of NVML


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    add_settings(parser, settings.NAMES)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    chosen = narrowed(load_settings(arguments), file.chosen_switch())
    failures = dict.fromkeys((TOPOLOGY, PROCESSES), 0)
    machine = Machine(chosen, counting(failures, TOPOLOGY, gpus.query))
    machine.start_query()
    from affinityd.daemon import main  # noqa: PLC0415 - takes about as long as a driver to answer

    holders = HolderSources(counting(failures, PROCESSES, processes.query))
    auditor = Auditor(holders, reserved=chosen.reserved_cpus)
    main.run(chosen, machine, auditor.scan, nvml_failures=failures)
    return 0


def counting(
    failures: dict[str, int], question: str, ask: Callable[[float], R]
) -> Callable[[float], R]:
    """Return a function like `ask` that counts each report without an answer."""

    def asking(timeout: float) -> R:
        report = ask(timeout)
        failures[question] += report.gpus is None
        return report

    return asking


def narrowed(chosen: settings.Settings, said: str) -> settings.Settings:
    """Return the settings with the switch: it pins no more from outside than clients may."""
    is_free = said == switch.ON or chosen.enforce == settings.OFF
    return replace(chosen, switch=said, enforce=chosen.enforce if is_free else said)
