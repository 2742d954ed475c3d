"""The daemon's Prometheus metrics, on a registry of their own."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from affinityd import __version__
from affinityd.audit.document import AuditGpuDocument
from affinityd.daemon.state.scans import METRICS, ScanResult
from affinityd.daemon.state.topology_watcher import KnownNode
from affinityd.linux.processes import since_boot
from affinityd.text import one_line
from affinityd.topology.model import Gpu, Node
from affinityd.topology.rdma import nics_of_gpus

GPU_LABELS = ("vendor", "gpu", "uuid", "pci_bus_id")  #: an index is counted per vendor


def add(
    family: GaugeMetricFamily | CounterMetricFamily,
    labels: Sequence[str],
    value: float | Mapping[str, float] | None,
) -> None:
    """Add a sample; None: no sample; a mapping: a sample for each value of the last label."""
    if isinstance(value, Mapping):
        for word, number in value.items():
            family.add_metric([*labels, word], number)
    elif value is not None:
        family.add_metric(labels, value)


def with_samples(families: Iterable[Metric]) -> Iterator[Metric]:
    """Yield the metrics that have samples."""
    for family in families:
        if family.samples:
            yield family


def gpu_labels(gpu: Gpu | AuditGpuDocument) -> tuple[str, ...]:
    """Return the values of GPU_LABELS."""
    return gpu.vendor, str(gpu.index), one_line(gpu.uuid or ""), gpu.pci_bus_id


#: After so many seconds, or three intervals without a scan, the last scan's metrics are not served
#: any more: they would seem current, and keep alerts of ended jobs firing.
OLD_SECONDS = 300.0

#: The HTTP statuses of plans that are refused: the errors of `affinityd.errors`.
REFUSALS = ("404", "409", "422", "503")

#: Start times of the series are of no use here, and would double a scrape.
disable_created_metrics()  # type: ignore[no-untyped-call]


def _node_metrics(node: Node) -> Iterator[Metric]:
    """Yield the metrics of the node, its GPUs and its NICs."""
    by_vendor = GaugeMetricFamily(
        "affinityd_gpus", "GPUs of the node, by vendor.", labels=("vendor",)
    )
    add(by_vendor, (), Count(gpu.vendor for gpu in node.topology.gpus))
    yield by_vendor
    yield GaugeMetricFamily(
        "affinityd_topology_generation",
        "Grows by one each time a new reading of the topology differs.",
        node.generation,
    )
    nodes = GaugeMetricFamily(
        "affinityd_gpu_numa_node",
        "The NUMA node of each GPU; a GPU whose node is not known has no sample.",
        labels=GPU_LABELS,
    )
    # A port is named as by node_exporter's infiniband collector.
    ports = GaugeMetricFamily(
        "affinityd_gpu_nic_info",
        "1 for each RDMA port that plans give a GPU, by its link to the GPU.",
        labels=(*GPU_LABELS, "device", "port", "link"),
    )
    nics = nics_of_gpus(node.topology)
    for gpu in node.topology.gpus:
        labels = gpu_labels(gpu)
        add(nodes, labels, gpu.numa_node)
        for near in nics[gpu.key].best():
            port = (one_line(near.port.device), str(near.port.number), near.link)
            ports.add_metric([*labels, *port], 1)
    yield nodes
    yield ports


class Metrics:
    """The daemon's counters, and its metrics of the node and the processes."""

    def __init__(
        self,
        machine: KnownNode,
        last_scan: Callable[[], ScanResult | None],
        *,
        scan_interval: float | None = None,
        demo: str | None = None,
    ) -> None:
        """Take the sources of the node and of the last scan, read at each scrape.

        `scan_interval`: seconds between two scans; None: no scans. `demo`: the machine whose
        processes are made up.
        """
        self.scan_interval: float | None = scan_interval
        self.last_scan = last_scan
        self._machine = machine
        self.of_nri: Callable[[], Iterator[Metric]] | None = None
        self._registry = registry = CollectorRegistry()
        self.plans = Counter(
            "affinityd_plans",
            "Requests for a plan, by mode, by result (ok, or the HTTP status of the refusal), "
            "by the worst locality of any rank, and by client: job for the format that jobs take, "
            "other for people, pages and pods' init.",
            ("mode", "result", "locality", "client"),
            registry=registry,
        )
        for status in REFUSALS:  # without a 0 at the start, rate() misses a series' first refusals
            self.plans.labels("", status, "", "job")
        self.observed_plans = Counter(
            "affinityd_observed_plans",
            "Plans that were not applied because of AFFINITYD=observe; before: where the process "
            "ran; after: the plan's worst locality.",
            ("before", "after"),
            registry=registry,
        )
        self.refused_connections = Counter(
            "affinityd_refused_connections",
            "Connections closed for a new one because their user had too many.",
            registry=registry,
        )
        build = {"version": __version__}
        if demo is not None:
            build["demo"] = demo
        Info("affinityd_build", "The daemon's version.", registry=registry).info(build)
        registry.register(self)
        ProcessCollector(registry=registry)

    @property
    def scan_age(self) -> float | None:
        """Seconds since the start of the last finished scan; None: there was none."""
        last = self.last_scan()
        return None if last is None else since_boot() - last.boot

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that are computed at each scrape."""
        families: list[Metric] = []
        if node := self._machine.known:
            families += _node_metrics(node)
        families.append(
            GaugeMetricFamily(
                "affinityd_scan_interval_seconds",
                "How often the processes are scanned.",
                self.scan_interval,
            )
        )
        # Only this metric shows that a scan hangs.
        families.append(
            GaugeMetricFamily(
                "affinityd_scan_age_seconds",
                "How long ago the last finished scan of the processes began.",
                self.scan_age,
            )
        )
        yield from with_samples(families)
        if self.of_nri is not None:
            yield from self.of_nri()

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text form, without those of an old scan."""
        own = generate_latest(self._registry)
        last = self.last_scan()
        if last is None or since_boot() - last.boot > max(
            OLD_SECONDS, 3 * (self.scan_interval or 0)
        ):
            return own
        return last.texts[METRICS] + own
