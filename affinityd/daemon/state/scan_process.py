"""Scans in a process of their own, so that no plan waits for the interpreter that makes them.

It is forked before the daemon has threads, and ends with the daemon. One that has ended ends the
daemon, too: it can be forked no more.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from traceback import format_exc

from affinityd.audit.model import AuditedProcess, Scan
from affinityd.errors import FatalError
from affinityd.topology.model import Topology

#: Threads whose facts are read in one piece: the interpreter does nothing else meanwhile.
PIECE = 500

#: Makes the function that scans, and the counts that it changes.
Make = Callable[[], tuple[Callable[[Topology], Scan], Mapping[str, int]]]


class ScanProcess:
    """A process that scans; to be called from one thread at a time."""

    def __init__(self, make: Make, counts: dict[str, int]) -> None:
        """Fork it; there, `make` is called. `counts` follow its counts."""
        self._pipe, theirs = Pipe()
        self._counts = counts
        self._sent: Topology | None = None
        if os.fork() == 0:
            try:
                self._pipe.close()
                _serve(theirs, make)
            finally:
                os._exit(0)
        theirs.close()

    def __call__(self, topology: Topology) -> Scan:
        """Return a scan. Raises RuntimeError for one that failed, with its traceback."""
        try:
            # It keeps the topology: one that is as it was must be the same object there.
            self._pipe.send(None if topology is self._sent else topology)
            self._sent = topology
            processes = [*self._pieces()]
            scan: Scan | None
            scan, counts, traceback = self._pipe.recv()
        except (OSError, EOFError):
            raise FatalError("the process that scans the processes has ended") from None
        self._counts.update(counts)
        if scan is None:
            raise RuntimeError(traceback)
        return replace(scan, processes=tuple(processes))

    def _pieces(self) -> Iterator[AuditedProcess]:
        while piece := self._pipe.recv():
            yield from piece


def _serve(pipe: Connection, make: Make) -> None:
    """Scan at each request, until the daemon has ended."""
    gc.enable()  # which the daemon's start has disabled
    for number in (signal.SIGINT, signal.SIGTERM):  # the daemon takes them, and ends first
        signal.signal(number, signal.SIG_IGN)
    scan, counts = make()
    topology: Topology | None = None
    with suppress(OSError, EOFError):
        while (topology := pipe.recv() or topology) is not None:
            found, traceback = _scanned(scan, topology)
            for piece in _cut(found.processes if found else ()):
                pipe.send(piece)
            pipe.send(())
            pipe.send((found and replace(found, processes=()), counts, traceback))


def _scanned(
    scan: Callable[[Topology], Scan], topology: Topology
) -> tuple[Scan | None, str | None]:
    """Return a scan, or its traceback."""
    try:
        return scan(topology), None
    except Exception:  # noqa: BLE001 - the daemon logs it
        return None, format_exc()


def _cut(processes: tuple[AuditedProcess, ...]) -> Iterator[list[AuditedProcess]]:
    """Yield the processes in pieces of about PIECE threads."""
    piece, threads = list[AuditedProcess](), 0
    for process in processes:
        piece.append(process)
        threads += len(process.facts.threads)
        if threads >= PIECE:
            yield piece
            piece, threads = [], 0
    if piece:
        yield piece
