"""Scans in a process of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from affinityd.daemon.state.audits import Audit, PackedAudit
from affinityd.daemon.state.worker import Worker

if TYPE_CHECKING:
    from affinityd.audit.model import Scan
    from affinityd.topology.model import Topology

#: Makes the function that scans, and the counts that it changes.
Make = Callable[[], "tuple[Callable[[Topology], Scan], Mapping[str, int]]"]


class ScanProcess:
    """A process that scans; to be called from one thread at a time."""

    def __init__(self, make: Make, counts: dict[str, int]) -> None:
        """Fork it; there, `make` is called. `counts` follow its counts."""
        self._worker = Worker("scans the processes", lambda: Scanning(*make()))
        self._counts = counts
        self._sent: Topology | None = None

    def __call__(self, topology: Topology) -> PackedAudit:
        """Return a scan. Raises RuntimeError for one that failed, with its traceback."""
        changed = None if topology is self._sent else topology
        found: PackedAudit
        found, counts = self._worker.call("audit", changed)
        self._sent = topology
        self._counts.update(counts)
        return found


class Scanning:
    """The function that scans, in its process."""

    def __init__(self, scan: Callable[[Topology], Scan], counts: Mapping[str, int]) -> None:
        """Take it, and the counts that it changes."""
        self._scan = scan
        self._counts = counts
        self._topology: Topology

    def audit(self, changed: Topology | None) -> tuple[PackedAudit, Mapping[str, int]]:
        """Scan; None: the topology is the same object as before."""
        if changed is not None:  # as it is at the first call
            self._topology = changed
        found = self._scan(self._topology)
        return PackedAudit.of(Audit(self._topology, found)), self._counts
