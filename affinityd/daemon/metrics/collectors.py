"""Metrics that are made at each scrape: of the node, of NVML's failures, of the last scan's age."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric

from affinityd.daemon.metrics.families import (
    GPU_LABELS,
    MetricFamily,
    Samples,
    each,
    gpu_labels,
    one,
    whole,
)
from affinityd.topology.node import Node


class ScrapeCollector:
    """Calls a function for its metrics at each scrape."""

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        """Take what yields them."""
        self.collect = collect

    def describe(self) -> list[Metric]:
        """Return nothing: no metric is known yet when this is registered."""
        return []


def _cpus(node: Node) -> Samples:
    online = node.topology.online
    counts = {"online": online, "possible": node.topology.possible}
    counts["reserved"] = node.reserved & online
    return (((state,), len(cpus)) for state, cpus in counts.items())


def _gpus(node: Node) -> Samples:
    vendors = [gpu.vendor for gpu in node.topology.gpus]
    return (((vendor,), vendors.count(vendor)) for vendor in sorted(set(vendors)))


def _numa_nodes(node: Node) -> Samples:
    gpus = node.topology.gpus
    return ((gpu_labels(gpu), gpu.numa_node) for gpu in gpus if gpu.numa_node is not None)


NODE_FAMILIES: tuple[MetricFamily[Node], ...] = (
    MetricFamily("affinityd_cpus", "Logical CPUs of the node, by state.", _cpus, ("state",)),
    MetricFamily("affinityd_gpus", "GPUs of the node, by vendor.", _gpus, ("vendor",)),
    MetricFamily(
        "affinityd_gpu_numa_node",
        "The NUMA node of each GPU; a GPU whose node is not known has no sample.",
        _numa_nodes,
        GPU_LABELS,
    ),
    MetricFamily(
        "affinityd_topology_generation",
        "Grows by one each time the topology was read anew and differed.",
        lambda node: one(node.generation),
    ),
)

NVML_FAILURES: MetricFamily[Mapping[str, int]] = MetricFamily(
    "affinityd_nvml_failures",
    "Questions that NVML did not answer, by what it was asked for: topology or processes.",
    lambda failures: each(failures, failures),
    ("question",),
    CounterMetricFamily,
)

SCAN_INTERVAL: MetricFamily[float] = MetricFamily(
    "affinityd_scan_interval_seconds", "How often the processes are looked at.", one
)

#: Of a scan that hangs, its age is all that there is to see.
SCAN_AGE: MetricFamily[float] = MetricFamily(
    "affinityd_scan_age_seconds",
    "How long ago the last finished scan of the processes began.",
    one,
)


def node_metrics(node: Node | None) -> Iterator[Metric]:
    """Yield the node's gauges; none before the first reading."""
    if node is not None:
        for family in NODE_FAMILIES:
            yield whole(family, node)


def nvml_metrics(failures: Mapping[str, int]) -> Iterator[Metric]:
    """Yield how often NVML did not answer so far, by question."""
    yield whole(NVML_FAILURES, failures)


def scan_metrics(interval: float | None, age: float | None) -> Iterator[Metric]:
    """Yield how often there is a scan, and how old the last is; None: there are none yet."""
    for family, seconds in ((SCAN_INTERVAL, interval), (SCAN_AGE, age)):
        if seconds is not None:
            yield whole(family, seconds)
