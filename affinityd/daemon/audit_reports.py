"""The log lines, metrics and document of the daemon's last scan, made in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from affinityd.audit.describe import render
from affinityd.daemon.audit_log import AuditLog
from affinityd.daemon.metrics import audit as audit_metrics
from affinityd.daemon.metrics.exposition import encoder
from affinityd.daemon.metrics.job_series import JobRow, JobSeries
from affinityd.daemon.peers.viewer import Viewer
from affinityd.daemon.state.audits import Audit, PackedAudit
from affinityd.errors import NotScannedError


class AuditReports:
    """Keeps the last scan, and describes it."""

    def __init__(self, job_series: int) -> None:
        """Take how many jobs may have metrics of their own."""
        self._jobs = JobSeries(job_series)
        self._log = AuditLog()
        self._rows: tuple[JobRow, ...] = ()
        self._audit: Audit | None = None

    def scanned(self, packed: PackedAudit) -> None:
        """Tell of a new scan from now on."""
        audit = packed.unpacked()
        self._rows = self._jobs.scanned(audit.scan)
        self._audit = audit
        self._log.scanned(audit)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, if there was a scan."""
        if self._audit is not None:
            yield from audit_metrics.metrics(self._audit, self._rows)

    def exposition(self, accept: str) -> bytes:
        """Return the metrics in a form that an Accept header takes."""
        encode, _ = encoder(accept)
        return encode(self)

    def document(self, viewer: Viewer) -> bytes:
        """Return a viewer's document. Raises NotScannedError before the first scan."""
        if self._audit is None:
            raise NotScannedError("the processes have not been scanned yet")
        return render(self._audit.topology, self._audit.scan, viewer.sees)
