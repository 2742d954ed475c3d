"""`affinityd serve`: the daemon."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from affinityd import config
from affinityd.cli.parser import Parser, add_settings, load_settings
from affinityd.config import settings
from affinityd.daemon.state.scan_process import ScanProcess
from affinityd.daemon.state.worker import Worker
from affinityd.discovery.machine import Machine
from affinityd.discovery.nvml import gpus, processes
from affinityd.discovery.nvml.report import R

if TYPE_CHECKING:
    from affinityd.audit.model import Scan
    from affinityd.daemon.audit_reports import AuditReports
    from affinityd.topology.model import Topology

TOPOLOGY, PROCESSES = "topology", "processes"  #: the purpose of a call of NVML


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    add_settings(parser, settings.NAMES)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    gc.disable()  # until all is imported: what is imported stays
    chosen = narrowed(load_settings(arguments), config.chosen_switch())
    failures = dict.fromkeys((TOPOLOGY, PROCESSES), 0)
    scans = chosen.scan_interval is not None and not chosen.replays
    scan = ScanProcess(partial(_scanner, chosen), failures) if scans else None
    reports = Worker("tells of the scans", partial(_reports, chosen)) if scans else None
    machine = Machine(chosen, counting(failures, TOPOLOGY, gpus.query))
    machine.start_query()
    from affinityd.daemon import main  # noqa: PLC0415 - takes about as long as a driver to answer

    audits = main.Audits(scan, reports) if scan and reports else None
    main.run(chosen, machine, audits, nvml_failures=failures)
    return 0


def _scanner(chosen: settings.Settings) -> tuple[Callable[[Topology], Scan], Mapping[str, int]]:
    """Return the function that scans, and its count of NVML's failures."""
    from affinityd.cli.auditors import auditor_by  # noqa: PLC0415 - in its process

    failures = {PROCESSES: 0}
    query = counting(failures, PROCESSES, processes.query)
    return auditor_by(chosen, query, chosen.reserved_cpus).scan, failures


def _reports(chosen: settings.Settings) -> AuditReports:
    from affinityd.daemon.audit_reports import AuditReports  # noqa: PLC0415 - in its process

    return AuditReports(chosen.job_series)


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
    is_free = said == config.ON or chosen.enforce == settings.OFF
    return replace(chosen, switch=said, enforce=chosen.enforce if is_free else said)
