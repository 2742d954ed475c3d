"""A scan with its topology; and as bytes, which a process hands on without reading them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from affinityd.audit.model import AuditedProcess, Scan
    from affinityd.topology.model import Topology

#: Threads whose facts are read in one piece: the interpreter does nothing else meanwhile.
PIECE = 500


@dataclass(frozen=True, eq=False)  # to compare two would compare two machines, core by core
class Audit:
    """A scan, and the topology that it judged by."""

    topology: Topology
    scan: Scan


@dataclass(frozen=True, eq=False)
class PackedAudit:
    """An audit as bytes: the event loop need not wait until all of it is read."""

    boot: float  #: when the scan began, seconds since boot
    without_processes: bytes
    pieces: tuple[bytes, ...]  #: the processes

    @classmethod
    def of(cls, audit: Audit) -> PackedAudit:
        """Pack an audit."""
        scan = audit.scan
        rest = Audit(audit.topology, replace(scan, processes=()))
        pieces = tuple(pickle.dumps(piece) for piece in _cut(scan.processes))
        return cls(scan.boot, pickle.dumps(rest), pieces)

    def unpacked(self) -> Audit:
        """Return it as it was."""
        rest: Audit = pickle.loads(self.without_processes)  # noqa: S301 - the daemon's own
        processes = (it for piece in self.pieces for it in pickle.loads(piece))  # noqa: S301
        return replace(rest, scan=replace(rest.scan, processes=tuple(processes)))


def _cut(processes: tuple[AuditedProcess, ...]) -> Iterator[list[AuditedProcess]]:
    """Yield the processes in pieces of about PIECE threads."""
    piece: list[AuditedProcess] = []
    threads = 0
    for process in processes:
        piece.append(process)
        threads += len(process.facts.threads)
        if threads >= PIECE:
            yield piece
            piece, threads = [], 0
    if piece:
        yield piece
