"""The child process that scans, judges and enforces; only bytes come back to the daemon.

It is forked before the daemon has threads, so no plan waits for an interpreter that looks at
thousands of processes. Its answers are JSON, metrics and documents as they are served; none is
unpickled. It ends with the daemon. A child that has ended or hangs ends the daemon, which its
supervisor starts again.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, Pipe
from traceback import format_exc
from typing import TYPE_CHECKING, Protocol

from affinityd.daemon.state.background import FailureLog, in_background
from affinityd.errors import FatalError
from affinityd.linux.syscalls import end_with
from affinityd.threads import started

if TYPE_CHECKING:
    from affinityd.audit.model import ContainerNames
    from affinityd.daemon.state.plan_service import PlanService
    from affinityd.topology.model import Topology

#: A scan takes at most 20 s, and the work on it a few: one that takes longer hangs.
HUNG_SECONDS = 120.0

ENDED = "the process that scans the processes has ended"


@dataclass(frozen=True)
class ScanResult:
    """The part of a scan that the daemon keeps."""

    boot: float  #: when the scan began, seconds since boot
    enforced: float | None  #: the same of the last scan by which was enforced; None: there was none
    text: bytes  #: the metrics in Prometheus' text form
    open_metrics: bytes  #: the same as OpenMetrics


class Scanner(Protocol):
    """The object that works in the child."""

    counts: Mapping[str, int]  #: of failures, for the daemon's metrics

    def scan(self, topology: Topology, containers: ContainerNames) -> ScanResult:
        """Scan once; `containers`: those that are known by name."""

    def document(self, path: str, *, is_admin: bool, uid: int | None) -> bytes:
        """Return the document of the last scan at a path, as `Viewer(is_admin, uid)` sees it."""


class ScanChild:
    """The child; one thread at a time may ask for a scan, any thread for documents."""

    def __init__(self, make: Callable[[], Scanner], counts: dict[str, int]) -> None:
        self._scans, scans = Pipe()
        self._documents, documents = Pipe()
        self._turn = threading.Lock()  # of the pipe for documents
        self._counts = counts
        self._sent: Topology | None = None
        daemon = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._scans.close()
                self._documents.close()
                with suppress(OSError):  # without it, a child that hangs ends later
                    end_with(daemon)
                _serve(scans, documents, make)
            finally:
                os._exit(0)
        scans.close()
        documents.close()

    def scan(self, topology: Topology, containers: ContainerNames | None = None) -> ScanResult:
        """Have it scan; its log lines are logged here.

        Raises RuntimeError, with the traceback, for a scan that failed; FatalError for a child that
        has ended or hangs.
        """
        try:
            changed = None if topology is self._sent else topology
            self._scans.send((changed, {**(containers or {})}))
            if not self._scans.poll(HUNG_SECONDS):
                os.kill(self._pid, signal.SIGKILL)
                raise FatalError(f"a scan of the processes has hung for {HUNG_SECONDS:g} s")
            answer = json.loads(self._scans.recv_bytes())
            text, open_metrics = self._scans.recv_bytes(), self._scans.recv_bytes()
        except (OSError, EOFError):
            raise FatalError(ENDED) from None
        self._sent = topology
        self._counts.update(answer["counts"])
        for name, level, message in answer["log"]:
            logging.getLogger(name).log(level, "%s", message)
        if answer["error"] is not None:
            raise RuntimeError(answer["error"])
        return ScanResult(answer["boot"], answer["enforced"], text, open_metrics)

    def document(self, path: str, *, is_admin: bool, uid: int | None) -> bytes:
        """Return a document of the last scan as a viewer may see it, also during a scan.

        Raises RuntimeError, with the traceback, if it could not be written.
        """
        question = json.dumps([path, is_admin, uid])
        try:
            with self._turn:
                self._documents.send_bytes(question.encode())
                error, document = self._documents.recv_bytes(), self._documents.recv_bytes()
        except (OSError, EOFError):
            raise FatalError(ENDED) from None
        if error:
            raise RuntimeError(error.decode())
        return document


async def scan_regularly(
    scan: Callable[[Topology], ScanResult],
    service: PlanService,
    consume: Callable[[ScanResult], None],
    on_failure: Callable[[], None],
    *,
    every: float,
) -> None:
    """Scan every so many seconds, from the first reading of the topology on, for ever.

    A scan that fails leaves the last one, whose age grows, and is counted by `on_failure`. Raises
    FatalError.
    """
    failures = FailureLog(
        "a scan of the processes failed; the last good one stays", count=on_failure
    )
    await service.has_read.wait()
    while True:
        began = time.monotonic()
        with failures.logged():
            consume(await in_background(partial(scan, service.node.topology)))
        await asyncio.sleep(began + every - time.monotonic())


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter())  # the message and its traceback alone
        self._kept: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = " | ".join(part.strip() for part in self.format(record).splitlines())
        self._kept.append((record.name, record.levelno, line))

    def taken(self) -> list[tuple[str, int, str]]:
        """Return the records since the last call: logger, level, message."""
        kept, self._kept = self._kept, []
        return kept


def _serve(scans: Connection, documents: Connection, make: Callable[[], Scanner]) -> None:
    """Make one scan after the other, until the daemon has ended."""
    gc.enable()  # which the daemon's start has disabled
    for number in (signal.SIGINT, signal.SIGTERM):  # the daemon takes them, and ends first
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(handlers=[records := _Records()], level=logging.INFO, force=True)
    scanner: Scanner | None = None
    topology: Topology
    with suppress(OSError, EOFError):
        while True:
            changed, containers = scans.recv()
            if changed is not None:  # as it is at the first scan
                topology = changed
            try:
                if scanner is None:
                    scanner = make()
                    started(partial(_answer, documents, scanner))
                result, error = scanner.scan(topology, containers), None
            except Exception:  # noqa: BLE001 - the daemon logs it
                result, error = ScanResult(0.0, None, b"", b""), format_exc()
            answer = {
                "boot": result.boot,
                "enforced": result.enforced,
                "counts": dict(scanner.counts) if scanner else {},
                "log": records.taken(),
                "error": error,
            }
            for part in (json.dumps(answer).encode(), result.text, result.open_metrics):
                scans.send_bytes(part)


def _answer(pipe: Connection, scanner: Scanner) -> None:
    """Write one document after the other, beside the scans, until the daemon has ended."""
    with suppress(OSError, EOFError):
        while True:
            path, is_admin, uid = json.loads(pipe.recv_bytes())
            try:
                error, document = b"", scanner.document(path, is_admin=is_admin, uid=uid)
            except Exception:  # noqa: BLE001 - the daemon logs it
                error, document = format_exc().encode(), b""
            pipe.send_bytes(error)
            pipe.send_bytes(document)
