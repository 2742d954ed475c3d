"""The daemon's life: sockets, the first reading, signals, the end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import uvloop

from affinityd import __version__
from affinityd.config.settings import Settings
from affinityd.config.switch import ON
from affinityd.daemon import signals
from affinityd.daemon.api.app import create_app
from affinityd.daemon.api.documents import Told
from affinityd.daemon.api.enforcement import NOT_ENFORCING
from affinityd.daemon.api.plan_only import PlanOnly
from affinityd.daemon.audit_log import AuditLog
from affinityd.daemon.http.connections import Connections
from affinityd.daemon.http.refusals import REASONS, RefusalLog
from affinityd.daemon.listeners import Serving
from affinityd.daemon.logging import log_on_stdout
from affinityd.daemon.metrics.registry import Metrics
from affinityd.daemon.peers.callers import Callers
from affinityd.daemon.sockets import Listeners, listening
from affinityd.daemon.state.node_publisher import NodePublisher
from affinityd.daemon.state.plan_service import PlanService
from affinityd.daemon.state.scanner import Audit, Auditor, LatestAudit, Scanner
from affinityd.daemon.state.sd_notify import notify
from affinityd.daemon.state.topology_watcher import TopologySource, TopologyWatcher
from affinityd.daemon.uvicorn_server import most_connections, raise_file_limit
from affinityd.errors import AffinityError
from affinityd.topology import node_file

log = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0002  #: a thread that works lets another go on after so long


class Enforcement(Protocol):
    """Who acts on what was seen of the processes."""

    @property
    def documents(self) -> Told:
        """Those of what came of it."""

    def scanned(self, audit: Audit) -> None:
        """Act on a new scan; this may take a while, and raises nothing."""


#: Begins to act, and has its metrics there.
Enforce = Callable[[Settings, Metrics], Enforcement]


def run(
    settings: Settings,
    machine: TopologySource,
    auditor: Auditor | None = None,
    enforce: Enforce | None = None,
    *,
    nvml_failures: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Serve a machine until SIGTERM or SIGINT. Raises ListenError where that cannot be.

    Without an auditor nobody looks at its processes, and with `enforce` somebody acts on what was
    seen of them. `nvml_failures`: how often NVML did not answer so far, by question. Raises
    SystemExit for what should not be, once it is logged.
    """
    with log_on_stdout(settings.log_format):
        _let_answers_pass()
        raise_file_limit()
        try:
            with listening(settings) as listeners:
                uvloop.run(
                    _serve(
                        settings, machine, auditor, enforce, listeners, nvml_failures=nvml_failures
                    )
                )
        except AffinityError:
            raise
        except Exception:
            log.critical("this is a bug", exc_info=True)
            sys.exit(1)


async def _serve(
    settings: Settings,
    machine: TopologySource,
    auditor: Auditor | None,
    enforce: Enforce | None,
    listeners: Listeners,
    *,
    nvml_failures: Mapping[str, int],
) -> None:
    service = PlanService()
    if auditor is None or settings.replays:
        settings = replace(settings, scan_interval=None)
    metrics = Metrics(
        lambda: service.known,
        job_series=settings.job_series,
        scan_interval=settings.scan_interval,
        nvml_failures=nvml_failures,
    )
    enforcement = enforce(settings, metrics) if enforce else None
    audits = _audits(settings, auditor, service, metrics, enforcement)
    publisher = NodePublisher(
        Path(settings.socket).with_name(node_file.NAME), replayed=settings.replays
    )
    watcher = TopologyWatcher(
        service,
        machine,
        reserved=settings.reserved_cpus,
        switch=settings.switch,
        on_change=publisher.publish,
    )
    app = create_app(
        service,
        watcher,
        metrics,
        audits,
        callers=Callers(replayed=settings.replays),
        enforced=enforcement.documents if enforcement else NOT_ENFORCING,
        admin_group=settings.admin_group,
    )
    connections = Connections(RefusalLog(metrics.refusals(REASONS)), most=most_connections())
    serving = Serving(app, PlanOnly(app), listeners, connections)
    _take_signals(serving.stop, watcher.want_reading)
    works = (watcher.watch(), audits.run(), publisher.stay_published())
    tasks = [asyncio.ensure_future(work) for work in works]
    for task in tasks:
        task.add_done_callback(lambda _task: serving.stop())
    log.info("affinityd %s answers %s", __version__, listeners)
    if settings.switch != ON:
        log.info("AFFINITYD=%s: nothing is pinned on this node", settings.switch)
    await serving.run()
    notify("STOPPING=1")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _let_answers_pass() -> None:
    """Have threads in the background get out of an answer's way soon.

    With Python's own 5 ms each event of the loop would wait that long for them. And what was
    imported never goes: a full collection need not look at it, 30 ms in which nothing else runs.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()


def _audits(
    settings: Settings,
    auditor: Auditor | None,
    service: PlanService,
    metrics: Metrics,
    enforcement: Enforcement | None,
) -> LatestAudit:
    """Return who looks at the processes."""
    if settings.replays:
        return LatestAudit("a replayed machine has no processes to look at")
    if auditor is None or settings.scan_interval is None:
        return LatestAudit("this daemon looks at no processes: its scan interval is off")
    audit_log = AuditLog()

    def tell(audit: Audit) -> None:
        metrics.scanned(audit)
        audit_log.scanned(audit)

    scanner = Scanner(
        auditor,
        lambda: service.node.topology,
        every=settings.scan_interval,
        on_scan=tell,
        on_failure=metrics.scan_failed,
        then=enforcement.scanned if enforcement else None,
    )
    service.on_swap(scanner.want_first)
    return scanner


def _take_signals(stop: Callable[[], None], read_anew: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    # No handler of the loop's: where that ends, SIGHUP would be the process's end again.
    signal.signal(signal.SIGHUP, lambda _number, _frame: loop.call_soon_threadsafe(read_anew))
    if os.getpid() == 1:
        signals.reap_orphans()
    signals.release()
