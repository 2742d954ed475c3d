"""The child process that scans and judges; only bytes come back to the daemon.

It is forked before the daemon has threads, so no plan waits for an interpreter that looks at
thousands of processes. Its answers are JSON, metrics and documents as they are served; none is
unpickled. It ends with the daemon. A child that has ended or hangs ends the daemon, which its
supervisor starts again.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from gzip import compress
from multiprocessing.connection import Connection, Pipe
from threading import Timer
from typing import TYPE_CHECKING

from affinityd.daemon.state.background import FailureLog, in_background
from affinityd.errors import FatalError
from affinityd.linux.syscalls import end_with

if TYPE_CHECKING:
    from affinityd.audit.model import ContainerNames
    from affinityd.daemon.state.topology_watcher import KnownNode
    from affinityd.topology.model import Topology

#: A scan takes at most 20 s, and the work on it a few: one that takes longer hangs.
HUNG_SECONDS = 120.0

#: Others go first on a busy CPU, and yet a scan ends in time there: it has a tenth of the CPU.
NICENESS = 10

METRICS = "metrics"  #: the name of the text with the metrics of a scan


@dataclass(frozen=True)
class ScanResult:
    """The part of a scan that the daemon keeps."""

    boot: float  #: when the scan began, seconds since boot
    texts: Mapping[str, bytes]
    counts: Mapping[str, int]  #: of failures since the start, by their name
    _compressed: dict[str, bytes] = field(default_factory=dict)

    def document(self, name: str, *, as_gzip: bool = False) -> bytes:
        """Return ALL or COUNTS; it is compressed once a scan, since pages ask often."""
        if not as_gzip:
            return self.texts[name]
        if name not in self._compressed:
            self._compressed[name] = compress(self.texts[name], 6)
        return self._compressed[name]


Scan = Callable[["Topology", "ContainerNames"], ScanResult]


class ScanChild:
    """The child, and the result of its last scan; one thread at a time may ask for a scan."""

    def __init__(self, work: Callable[[Connection], None], counts: dict[str, int]) -> None:
        """Fork the child, which does `work` until the pipe is closed.

        `counts` receives its counts of failures.
        """
        self.last: ScanResult | None = None
        self._pipe, pipe = Pipe()
        self._counts = counts
        self._sent: Topology | None = None
        daemon = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._pipe.close()
                with suppress(OSError):  # without it, a child that hangs ends later
                    end_with(daemon)
                gc.enable()  # which the daemon's start has disabled
                with suppress(OSError):  # a unit may leave the call out
                    os.nice(NICENESS)
                for number in (signal.SIGINT, signal.SIGTERM):  # the daemon takes them, ends first
                    signal.signal(number, signal.SIG_IGN)
                with suppress(OSError, EOFError):  # the daemon has ended
                    work(pipe)
            finally:
                os._exit(0)
        pipe.close()

    def scan(self, topology: Topology, containers: ContainerNames) -> bool:
        """Have it scan; `containers` are those known by name. Return whether it could.

        Raises FatalError for a child that has ended or hangs: it is killed after HUNG_SECONDS, also
        where it has begun to answer.
        """
        limit = Timer(HUNG_SECONDS, os.kill, (self._pid, signal.SIGKILL))
        limit.daemon = True
        try:
            limit.start()
            self._pipe.send((None if topology is self._sent else topology, dict(containers)))
            head = json.loads(self._pipe.recv_bytes())
            texts = {name: self._pipe.recv_bytes() for name in head["texts"]} if head else {}
        except RuntimeError:  # no thread can be started
            return False
        except (OSError, EOFError):
            has_hung = limit.finished.is_set()
            end = f"a scan of the processes has hung for {HUNG_SECONDS:g} s"
            raise FatalError(
                end if has_hung else "the process that scans the processes has ended"
            ) from None
        finally:
            limit.cancel()
        self._sent = topology
        if head:
            self._counts.update(head["counts"])
            self.last = ScanResult(head["boot"], texts, head["counts"])
        return head is not None


async def scan_regularly(
    scan: Callable[[Topology], bool],
    machine: KnownNode,
    on_failure: Callable[[], None],
    *,
    every: float,
) -> None:
    """Scan every so many seconds, from the first reading of the topology on, for ever.

    A scan that fails leaves the last one, whose age grows, and is counted by `on_failure`. Raises
    FatalError.
    """
    await machine.has_read.wait()
    while True:
        began = time.monotonic()
        try:
            has_scanned = await in_background(partial(scan, machine.node.topology))
        except OSError:  # no thread can be started
            has_scanned = False
        if not has_scanned:
            on_failure()
        await asyncio.sleep(began + every - time.monotonic())


def serve_scans(pipe: Connection, make: Callable[[], Scan]) -> None:
    """Make one scan after the other in the child, until the daemon has ended."""
    failures = FailureLog("a scan of the processes failed; the last good one stays")
    scan: Scan | None = None
    topology: Topology
    while True:
        changed, containers = pipe.recv()
        if changed is not None:  # as it is at the first scan
            topology = changed
        result = None
        with failures.logged():
            scan = scan or make()
            result = scan(topology, containers)
        if result is None:
            pipe.send_bytes(b"null")
            continue
        head = {"boot": result.boot, "counts": dict(result.counts), "texts": list(result.texts)}
        for part in (json.dumps(head).encode(), *result.texts.values()):
            pipe.send_bytes(part)
