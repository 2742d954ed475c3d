"""The daemon from start to end: sockets, the first reading, signals, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import partial

import uvloop
from anyio import to_thread

from affinityd import __version__
from affinityd.config import ON
from affinityd.config.settings import Settings
from affinityd.daemon import release_signals
from affinityd.daemon.api import ApiState
from affinityd.daemon.api.app import plans_app, whole_app
from affinityd.daemon.api.peers import Connections
from affinityd.daemon.logging import log_on_stdout
from affinityd.daemon.metrics import Metrics
from affinityd.daemon.nri import NriPlugin
from affinityd.daemon.servers import Listeners, Server, listening, raise_file_limit
from affinityd.daemon.state.scans import ScanChild, ScanResult, scan_regularly
from affinityd.daemon.state.topology_watcher import TopologyWatcher, notify
from affinityd.discovery.machine import Machine
from affinityd.errors import AffinityError, FatalError
from affinityd.machines import BUSY
from affinityd.topology.model import Topology

log = logging.getLogger(__name__)


def run(
    settings: Settings,
    machine: Machine,
    scans: ScanChild | None,
) -> None:
    """Serve a machine until SIGTERM or SIGINT.

    Raises ListenError if it cannot listen; SystemExit for a fatal error, once it is logged.
    """
    with log_on_stdout(settings.log_format):
        # With Python's own 5 ms each event of the loop would wait that long for other threads.
        # Imported modules stay, so no full collection (30 ms) need scan them.
        sys.setswitchinterval(0.0002)
        gc.freeze()
        gc.enable()
        raise_file_limit()
        try:
            with listening(settings) as listeners:
                uvloop.run(_serve(settings, machine, scans, listeners))
        except FatalError as error:
            log.critical("%s: the daemon exits, to be restarted", error)
            sys.exit(error.exit_code)
        except AffinityError:
            raise
        except Exception:
            log.critical("this is a bug", exc_info=True)
            sys.exit(1)


async def _serve(
    settings: Settings,
    machine: Machine,
    scans: ScanChild | None,
    listeners: Listeners,
) -> None:
    # One thread answers requests, one at a time, so that plans wait as little as possible.
    to_thread.current_default_thread_limiter().total_tokens = 1
    if scans is None:
        settings = replace(settings, scan_interval=None)

    def last_scan() -> ScanResult | None:
        return scans.last if scans else None

    watcher = TopologyWatcher(machine, settings)
    metrics = Metrics(
        watcher,
        last_scan,
        scan_interval=settings.scan_interval,
        demo=BUSY if settings.machine == BUSY else None,
    )
    state = ApiState(settings, watcher, metrics, last_scan)
    connections = Connections(metrics.refused_connections.inc)
    servers = [
        Server(whole_app(state), listeners.everything, connections),
        Server(plans_app(state), listeners.plans, connections),
    ]
    works = [watcher.watch(), listeners.watch()]
    plugin = None
    if settings.nri is not None:
        loop = asyncio.get_running_loop()
        want_reading = partial(loop.call_soon_threadsafe, watcher.want_reading)
        plugin = NriPlugin(settings, watcher, want_reading)
        metrics.of_nri = plugin.metrics
        plugin.start()
    if scans is not None and (every := settings.scan_interval) is not None:

        def scan(topology: Topology) -> None:
            scans.scan(topology, plugin.names if plugin else {})

        works.append(scan_regularly(scan, watcher, every=every))
    _take_signals(servers, watcher)
    log.info("affinityd %s answers %s", __version__, listeners)
    if settings.switch != ON:
        log.info("AFFINITYD=%s: nothing is pinned on this node", settings.switch)
    await _run(servers, works)


async def _run(servers: Sequence[Server], works: Iterable[Coroutine[None, None, None]]) -> None:
    """Serve until the servers have ended, or one of the tasks fails; raise the task's error."""
    tasks = [asyncio.ensure_future(work) for work in works]

    def end(_task: object) -> None:
        _end(servers)

    for task in tasks:
        task.add_done_callback(end)
    await asyncio.gather(*(server.answer() for server in servers))
    notify("STOPPING=1")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _take_signals(servers: Sequence[Server], watcher: TopologyWatcher) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _end, servers)

    def read_again(_number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(watcher.want_reading)

    # If the loop handled this signal, SIGHUP would kill the process after the loop's end.
    signal.signal(signal.SIGHUP, read_again)
    release_signals()


def _end(servers: Sequence[Server]) -> None:
    for server in servers:
        server.end()
