"""The Prometheus metrics, on a registry of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, Info, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric

from affinityd import __version__
from affinityd.service import Answer, Node

#: Seconds. A plan takes about a millisecond; a new reading of the machine may come before it.
BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)

#: When each series began is of no use here, and doubles what a scrape carries.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """What the daemon counts, and the node that it describes."""

    def __init__(self, node: Callable[[], Node | None]) -> None:
        """Take where the node comes from: it is asked at each scrape."""
        self.registry = CollectorRegistry()
        self._plans = Counter(
            "affinityd_plans",
            "Plan requests answered, by mode, by result (ok, or the HTTP status of the refusal) "
            "and by the worst locality of any rank.",
            ("mode", "result", "locality"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "affinityd_plan_seconds",
            "Seconds that planning took; a remembered answer is not planned again.",
            buckets=BUCKETS,
            registry=self.registry,
        )
        Info("affinityd_build", "The daemon's version.", registry=self.registry).info(
            {"version": __version__}
        )
        self.registry.register(NodeCollector(node))

    def planned(self, answer: Answer, seconds: float) -> None:
        """Count a request that was planned, and the time that it took."""
        self.counter(answer)()
        self._seconds.observe(seconds)

    def refused(self, mode: str, status: int) -> None:
        """Count a request that was refused; `mode` is empty where none could be read."""
        self._plans.labels(mode, str(status), "").inc()

    def counter(self, answer: Answer) -> Callable[[], None]:
        """Return what counts one more request with this answer, for as little as it can cost."""
        return self._plans.labels(answer.mode, "ok", answer.locality).inc


class NodeCollector:
    """Describes the node as it is known when it is asked."""

    def __init__(self, node: Callable[[], Node | None]) -> None:
        """Take where the node comes from."""
        self._node = node

    def describe(self) -> list[Metric]:
        """Return nothing: the node is not known yet when this is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the node's gauges; none before the first reading."""
        node = self._node()
        if node is None:
            return
        topology = node.topology
        cpus = GaugeMetricFamily(
            "affinityd_cpus", "Logical CPUs of the node, by state.", labels=["state"]
        )
        cpus.add_metric(["online"], len(topology.online))
        cpus.add_metric(["possible"], len(topology.possible))
        cpus.add_metric(["reserved"], len(node.reserved & topology.online))
        yield cpus
        gpus = GaugeMetricFamily(
            "affinityd_gpus", "GPUs of the node, by vendor.", labels=["vendor"]
        )
        for vendor in sorted({gpu.vendor for gpu in topology.gpus}):
            gpus.add_metric([vendor], sum(gpu.vendor == vendor for gpu in topology.gpus))
        yield gpus
        places = GaugeMetricFamily(
            "affinityd_gpu_numa_node",
            "The NUMA node of each GPU; a GPU whose node is not known has no sample.",
            labels=["vendor", "gpu", "pci_bus_id", "uuid"],
        )
        for gpu in topology.gpus:
            if gpu.numa_node is not None:
                labels = [gpu.vendor, str(gpu.index), gpu.pci_bus_id, gpu.uuid or ""]
                places.add_metric(labels, gpu.numa_node)
        yield places
        yield GaugeMetricFamily(
            "affinityd_topology_generation",
            "Grows by one each time the topology was read anew and differed.",
            value=node.generation,
        )
