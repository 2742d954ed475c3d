"""The daemon's life: sockets, the first reading, signals, the end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import uvloop

from affinityd import __version__
from affinityd.config import ON
from affinityd.config.settings import OFF, Settings
from affinityd.daemon import signals
from affinityd.daemon.api.answer_cache import AnswerCache
from affinityd.daemon.api.app import create_app
from affinityd.daemon.api.documents import Documents
from affinityd.daemon.api.plan_only import PlanOnly
from affinityd.daemon.http.connections import Connections
from affinityd.daemon.http.refusals import RefusalLog
from affinityd.daemon.logging import log_on_stdout
from affinityd.daemon.metrics.registry import Metrics
from affinityd.daemon.peers.callers import Callers
from affinityd.daemon.peers.viewer import Viewer
from affinityd.daemon.servers import Servers, most_connections, most_open_callers, raise_file_limit
from affinityd.daemon.sockets import Listeners, listening
from affinityd.daemon.state.audits import PackedAudit
from affinityd.daemon.state.node_publisher import NodePublisher, notify
from affinityd.daemon.state.plan_service import PlanService
from affinityd.daemon.state.scanner import ScanProcesses, scan_regularly
from affinityd.daemon.state.topology_watcher import TopologySource, TopologyWatcher
from affinityd.daemon.state.worker import Worker
from affinityd.errors import AffinityError, FatalError, NotScannedError
from affinityd.topology import node_file

if TYPE_CHECKING:
    from affinityd.daemon.audit_reports import AuditReports
    from affinityd.daemon.enforcement import Enforcement

log = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0002  #: after so long a running thread yields to another


@dataclass(frozen=True)
class Audits:
    """The processes that scan, and that tell of the scans."""

    scan: ScanProcesses
    reports: Worker[AuditReports]

    def exposition(self, accept: str) -> bytes:
        """Return the last scan's metrics in a form that an Accept header takes."""
        metrics: bytes = self.reports.call("exposition", accept)
        return metrics

    def document(self, _scan: float, viewer: Viewer) -> bytes:
        """Return the last scan's document."""
        document: bytes = self.reports.call("document", viewer)
        return document

    def scanned(self, audit: PackedAudit) -> None:
        """Tell of a new scan from now on."""
        self.reports.call("scanned", audit)


def run(
    settings: Settings,
    machine: TopologySource,
    audits: Audits | None,
    *,
    nvml_failures: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Serve a machine until SIGTERM or SIGINT. Raises ListenError if that is not possible.

    `nvml_failures`: how often NVML did not answer, by query. Raises SystemExit for a
    fatal error, once it is logged.
    """
    with log_on_stdout(settings.log_format):
        _let_answers_pass()
        raise_file_limit()
        try:
            with listening(settings) as listeners:
                uvloop.run(_serve(settings, machine, audits, listeners, nvml_failures))
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
    machine: TopologySource,
    audits: Audits | None,
    listeners: Listeners,
    nvml_failures: Mapping[str, int],
) -> None:
    service = PlanService()
    if audits is None:
        settings = replace(settings, scan_interval=None)
    metrics = Metrics(
        lambda: service.known,
        of_scan=audits.exposition if audits else _nothing,
        scan_interval=settings.scan_interval,
        nvml_failures=nvml_failures,
    )
    enforcement = _enforcement(settings, metrics)
    documents = Documents[float](
        audits.document if audits else _nothing, NotScannedError, _why_no_audit(settings)
    )
    path = Path(settings.socket).with_name(node_file.NAME)
    publisher = NodePublisher(service, path, replayed=settings.replays)
    watcher = TopologyWatcher(
        service,
        machine,
        reserved=settings.reserved_cpus,
        switch=settings.switch,
        on_read=publisher.has_been_read.set,
    )
    answers = AnswerCache(
        Callers(replayed=settings.replays, most_open=most_open_callers()),
        generation=watcher.generation,
        counter=metrics.counter,
    )
    app = create_app(
        service,
        watcher,
        metrics,
        answers,
        {"/audit": documents, "/enforce": enforcement.documents if enforcement else None},
        admin_group=settings.admin_group,
        socket=settings.socket,
    )
    connections = Connections(RefusalLog(metrics.refused_connection), most=most_connections())
    servers = Servers(app, PlanOnly(app), listeners, connections, answers.find)
    works = [watcher.watch(), publisher.run(), servers.watch()]
    if audits is not None and (every := settings.scan_interval) is not None:
        consumers = [audits.scanned, lambda audit: documents.update(audit.boot), metrics.scanned]
        if enforcement is not None:
            consumers.append(enforcement.scanned)
        failed = metrics.scan_failed
        works.append(scan_regularly(audits.scan, service, consumers, failed, every=every))
    if settings.nri is not None:
        from affinityd.daemon.nri import NriPlugin  # noqa: PLC0415 - most daemons have none

        plugin = NriPlugin(settings, service)
        metrics.show("nri", plugin.metrics)
        plugin.start()
    _take_signals(servers.stop, watcher.want_reading)
    log.info("affinityd %s answers %s", __version__, listeners)
    if settings.switch != ON:
        log.info("AFFINITYD=%s: nothing is pinned on this node", settings.switch)
    await _run(servers, works)


async def _run(servers: Servers, works: Iterable[Coroutine[None, None, None]]) -> None:
    """Serve until the servers are stopped, or one of the works fails, whose error is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    for task in tasks:
        task.add_done_callback(lambda _task: servers.stop())
    await servers.run()
    notify("STOPPING=1")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _let_answers_pass() -> None:
    """Let background threads yield to an answer soon.

    With Python's own 5 ms each event of the loop would wait that long for them. And
    imported modules stay: a full collection need not scan them, 30 ms in which nothing else runs.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()
    gc.enable()


def _enforcement(settings: Settings, metrics: Metrics) -> Enforcement | None:
    if settings.enforce == OFF:
        return None
    from affinityd.daemon.enforcement import Enforcement  # noqa: PLC0415 - most daemons enforce nothing

    return Enforcement(settings, metrics)


def _nothing(*_: object) -> bytes:
    """Stand for metrics and documents of scans where there are none."""
    return b""


def _why_no_audit(settings: Settings) -> str:
    if settings.replays:
        return "a replayed machine has no processes to scan"
    if settings.scan_interval is None:
        return "this daemon scans no processes: its scan interval is off"
    return "the processes have not been scanned yet; try again in a moment"


def _take_signals(stop: Callable[[], None], read_anew: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    # No handler of the loop's: where that ends, SIGHUP would be the process's end again.
    signal.signal(signal.SIGHUP, lambda _number, _frame: loop.call_soon_threadsafe(read_anew))
    signals.release()
