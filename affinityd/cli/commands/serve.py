"""`affinityd serve`: the daemon."""

from __future__ import annotations

import argparse
import gc
import os
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from affinityd import config
from affinityd.cli.console import say
from affinityd.cli.parser import Parser, add_settings, load_settings
from affinityd.config import removed, settings
from affinityd.daemon.state.scans import Scan, ScanChild, serve_scans
from affinityd.discovery.machine import Machine
from affinityd.discovery.nvml.query import query_processes
from affinityd.machines import BUSY


def add_arguments(parser: Parser) -> None:
    """Add the command's options."""
    parser.epilog = "docs/settings.md has more. exit status: 0: ended by a signal; 1, 2: no start"
    # Options that are not needed at first: the help leaves them out.
    rare = {"root", "listen_plan", "nri_namespaces", "nri_mount", "nri_without_request"}
    add_settings(parser, settings.SETTING_NAMES, shown={*settings.SETTING_NAMES} - rare)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    gc.disable()  # until all modules are imported: they are no garbage
    for line in removed.warnings():
        say(f"affinityd serve: {line}")
    chosen = replace(load_settings(arguments), switch=config.chosen_switch())
    if chosen.machine is not None:
        chosen = of_replay(chosen, arguments)
    has_processes = chosen.machine == BUSY or not chosen.replays
    is_scanning = chosen.scan_interval is not None and has_processes
    scans = ScanChild(partial(_scan, chosen)) if is_scanning else None
    from affinityd.daemon import main  # noqa: PLC0415 - takes about as long as a driver to answer

    main.run(chosen, Machine(chosen), scans)
    return 0


def of_replay(chosen: settings.Settings, arguments: argparse.Namespace) -> settings.Settings:
    """Return the settings for a built-in machine, which no client may mistake for this node."""
    if arguments.socket is None and chosen.socket in {
        config.SYSTEM_SOCKET,
        config.default_socket(),
    }:
        socket = Path(chosen.socket).with_name("replayed") / "affinityd.sock"
        say(f"affinityd serve: {chosen.machine} listens at {socket}, where no job asks")
        chosen = replace(chosen, socket=os.fspath(socket))
    if chosen.machine != BUSY:
        return chosen
    say(f"affinityd serve: a demo: the processes of {BUSY} are made up, also in the lines below")
    if arguments.listen is None:  # Prometheus may scrape the address in the settings file
        chosen = replace(chosen, listen=settings.DEFAULT_LISTEN)
    return chosen


def _scan(chosen: settings.Settings, pipe: Connection) -> None:
    pipe.poll(None)  # import only when the first scan is requested: the daemon starts first
    from affinityd.daemon.logging import log_on_stdout  # noqa: PLC0415 - in the child

    with log_on_stdout(chosen.log_format):
        serve_scans(pipe, partial(_scanning, chosen))


def _scanning(chosen: settings.Settings) -> Scan:
    from affinityd.cli.commands.audit import auditor_by  # noqa: PLC0415 - in the child
    from affinityd.daemon.scanning import Scanning  # noqa: PLC0415 - in the child

    if chosen.machine == BUSY:
        from affinityd.audit.demo import Demo  # noqa: PLC0415 - in the child

        return Scanning(chosen, Demo(BUSY, chosen.reserved_cpus).scan).scan
    return Scanning(chosen, auditor_by(chosen, query_processes, chosen.reserved_cpus).scan).scan
