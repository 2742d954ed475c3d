"""The child process that scans and judges; only bytes come back to the daemon.

The child is forked before the daemon has threads. While it reads thousands of processes, no plan
waits for its interpreter. It answers JSON, metrics and documents as they are served: no pickles. It
ends with the daemon. If the child has ended or hangs, the daemon ends, and is restarted.

It is no `Child` of linux/children, which yields one answer and ends: this child is asked for scan
after scan, and remembers processes from one scan to the next.
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
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, Pipe

from affinityd.audit.model import ContainerNames
from affinityd.daemon.state import FailureLog, in_background
from affinityd.daemon.state.topology_watcher import KnownNode
from affinityd.errors import FatalError
from affinityd.linux.syscalls import end_with
from affinityd.topology.model import Topology

#: A scan takes at most 20 s, and its documents a few seconds: one that takes longer hangs.
HUNG_SECONDS = 120.0

#: Other programs have priority on a busy CPU; the child still gets a tenth of it, so that a scan
#: ends in time.
NICENESS = 10

METRICS = "metrics"  #: the name of the text with the metrics of a scan
GZIP = ".gz"  #: suffix of a document's name: compressed, since many clients may ask for megabytes


@dataclass(frozen=True)
class ScanResult:
    """The part of a scan that the daemon keeps."""

    boot: float  #: when the scan began, seconds since boot
    texts: Mapping[str, bytes]  #: the metrics and the documents of /audit, by name


Scan = Callable[[Topology, ContainerNames], ScanResult]


class ScanChild:
    """The child, and the result of its last scan; one thread at a time may ask for a scan."""

    def __init__(self, work: Callable[[Connection], None]) -> None:
        """Fork the child, which does `work` until the pipe is closed."""
        self.last: ScanResult | None = None
        self._pipe, pipe = Pipe()
        self._sent: Topology | None = None
        daemon = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._pipe.close()
                with suppress(OSError):  # if this fails, a child that hangs ends later
                    end_with(daemon)
                gc.enable()  # the daemon's start has disabled garbage collection
                with suppress(OSError):  # a systemd unit may forbid the call
                    os.nice(NICENESS)
                for number in (signal.SIGINT, signal.SIGTERM):  # the daemon handles them
                    signal.signal(number, signal.SIG_IGN)
                with suppress(OSError, EOFError):  # the daemon has ended
                    work(pipe)
            finally:
                os._exit(0)
        pipe.close()

    def scan(self, topology: Topology, containers: ContainerNames) -> None:
        """Have the child scan; `containers`: the names of known containers.

        Raises FatalError if the child has ended or hangs. A child that hangs is killed.
        """
        try:
            changed = None if topology is self._sent else topology
            self._pipe.send((changed, dict(containers)))
            if not self._pipe.poll(HUNG_SECONDS):
                os.kill(self._pid, signal.SIGKILL)
                raise FatalError(f"a scan of the processes has hung for {HUNG_SECONDS:g} s")
            head = json.loads(self._pipe.recv_bytes())
            if head:
                texts = {name: self._pipe.recv_bytes() for name in head["texts"]}
                self.last = ScanResult(head["boot"], texts)
        except (OSError, EOFError):
            raise FatalError("the process that scans the processes has ended") from None
        self._sent = topology


async def scan_regularly(
    scan: Callable[[Topology], None], machine: KnownNode, *, every: float
) -> None:
    """Scan at each interval, forever, from the first reading of the topology on.

    If a scan fails, the last result stays, and its age grows. Raises FatalError.
    """
    await machine.has_read.wait()
    while True:
        began = time.monotonic()
        with suppress(OSError):  # no thread can be started
            await in_background(partial(scan, machine.node.topology))
        await asyncio.sleep(began + every - time.monotonic())


def serve_scans(pipe: Connection, make: Callable[[], Scan]) -> None:
    """Make one scan after the other in the child, until the daemon has ended."""
    failures = FailureLog("a scan of the processes failed; the last good one stays")
    scan: Scan | None = None
    topology: Topology
    while True:
        changed, containers = pipe.recv()
        if changed is not None:  # None: the same as at the last scan
            topology = changed
        result = None
        with failures.logged():
            scan = scan or make()
            result = scan(topology, containers)
        if result is None:
            pipe.send_bytes(b"null")
        else:
            head = {"boot": result.boot, "texts": list(result.texts)}
            for part in (json.dumps(head).encode(), *result.texts.values()):
                pipe.send_bytes(part)
