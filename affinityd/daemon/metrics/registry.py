"""The Prometheus metrics, on a registry of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from affinityd import __version__
from affinityd.audit.model import Scan
from affinityd.daemon.metrics import audit as audit_metrics
from affinityd.daemon.metrics.collectors import (
    ScrapeCollector,
    node_metrics,
    nvml_metrics,
    scan_metrics,
)
from affinityd.daemon.metrics.job_series import JobSeries
from affinityd.daemon.state.plan_service import Answer
from affinityd.daemon.state.scanner import Audit
from affinityd.topology.node import Node

#: Seconds. A plan takes about a millisecond; a new reading of the machine may come before it.
BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)

OPEN_METRICS_END = b"# EOF\n"

#: When each series began is of no use here, and doubles what a scrape carries.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """What the daemon counts, and the node and the processes that it describes."""

    def __init__(
        self,
        node: Callable[[], Node | None],
        *,
        job_series: int = 0,
        scan_interval: float | None = None,
        nvml_failures: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Take where the node comes from: it is asked at each scrape; and the cap on job labels.

        `scan_interval`: seconds between two scans; None: there are none. `nvml_failures`: how often
        NVML did not answer so far, by question.
        """
        self.registry = CollectorRegistry()
        self._jobs = JobSeries(job_series)
        self._scan: Scan | None = None
        self._written: dict[str, WrittenMetrics] = {}
        self._plans = Counter(
            "affinityd_plans",
            "Plan requests answered, by mode, by result (ok, or the HTTP status of the refusal) "
            "and by the worst locality of any rank.",
            ("mode", "result", "locality"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "affinityd_plan_duration_seconds",
            "Seconds that planning took; a remembered answer is not planned again.",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._observed = Counter(
            "affinityd_observed_plans",
            "Plans that were not applied, as AFFINITYD=observe: where the process ran, and where "
            "its plan would have it run, seen from its GPUs.",
            ("before", "after"),
            registry=self.registry,
        )
        self._refused_connections = Counter(
            "affinityd_refused_connections",
            "Connections that were closed without an answer to what they asked, by reason.",
            ("reason",),
            registry=self.registry,
        )
        self._failed_scans = Counter(
            "affinityd_scan_failures",
            "Scans of the processes that failed; the one before stands, and its age grows.",
            registry=None if scan_interval is None else self.registry,
        )
        Info("affinityd_build", "The daemon's version.", registry=self.registry).info(
            {"version": __version__}
        )
        for collect in (
            lambda: node_metrics(node()),
            lambda: scan_metrics(scan_interval, self._age()),
            lambda: nvml_metrics(nvml_failures),
        ):
            self.registry.register(ScrapeCollector(collect))
        ProcessCollector(registry=self.registry)

    def scanned(self, audit: Audit) -> None:
        """Describe a new scan from now on; one after the other."""
        rows = self._jobs.scanned(audit.scan)
        self.write("scan", lambda: audit_metrics.metrics(audit, rows))
        self._scan = audit.scan

    def scan_failed(self) -> None:
        """Count a scan that failed."""
        self._failed_scans.inc()

    def write(self, name: str, collect: Callable[[], Iterator[Metric]]) -> None:
        """Have metrics from now on instead of those of that name, which are collected once."""
        self._written = {**self._written, name: WrittenMetrics(collect)}

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return all of it in a form that an Accept header takes, and that form's media type.

        Thousands of series take a while: not on the event loop.
        """
        try:
            encode, media_type = choose_encoder(accept)
        except TypeError:  # its own, over a version that is no number
            encode, media_type = choose_encoder("")
        written = [it.text(encode, media_type) for it in self._written.values()]
        texts = (encode(self.registry), *written)
        end = OPEN_METRICS_END if texts[0].endswith(OPEN_METRICS_END) else b""
        return b"".join(text.removesuffix(end) for text in texts) + end, media_type

    def _age(self) -> float | None:
        return None if self._scan is None else time.monotonic() - self._scan.monotonic

    def planned(self, answer: Answer, seconds: float) -> None:
        """Count a request that was planned, and the time that it took."""
        self.counter(answer)()
        self._seconds.observe(seconds)

    def refused(self, mode: str, status: int) -> None:
        """Count a request that was refused; `mode` is empty where none could be read."""
        self._plans.labels(mode, str(status), "").inc()

    def refusals(self, reasons: Iterable[str]) -> Mapping[str, Callable[[], None]]:
        """Return what counts one more connection refused for each of these reasons, from 0 on."""
        return {reason: self._refused_connections.labels(reason).inc for reason in reasons}

    def counter(self, answer: Answer) -> Callable[[], None]:
        """Return what counts one more request with this answer, for as little as it can cost."""
        count = self._plans.labels(answer.mode, "ok", answer.locality).inc
        if answer.observed is None:
            return count
        observe = self._observed.labels(answer.observed, answer.locality).inc

        def both() -> None:
            count()
            observe()

        return both


class WrittenMetrics:
    """Metrics that are collected and written once, for all scrapes until there are newer ones."""

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        """Take what yields them."""
        self.collect = collect
        self._texts: dict[str, bytes] = {}

    def text(self, encode: Callable[[Collector], bytes], media_type: str) -> bytes:
        """Return them as an encoder writes them."""
        if media_type not in self._texts:
            self._texts = {media_type: encode(self)}  # a server scrapes in one form
        return self._texts[media_type]
