"""The metric that joins a GPU with the RDMA ports for it, and so with node_exporter's counters."""

from __future__ import annotations

from prometheus_client.core import GaugeMetricFamily, Metric

from affinityd.daemon.metrics.families import GPU_LABELS, gpu_labels
from affinityd.text import one_line
from affinityd.topology.model import Node
from affinityd.topology.rdma import nics_of_gpus


def gpu_nics(node: Node) -> Metric:
    """Return a sample for each GPU and each RDMA port that plans give it.

    `device` and `port` are those of node_exporter's infiniband collector.
    """
    metric = GaugeMetricFamily(
        "affinityd_gpu_nic_info",
        "1 for each RDMA port that plans give a GPU, by its link to the GPU.",
        labels=(*GPU_LABELS, "device", "port", "link"),
    )
    found = nics_of_gpus(node.topology)
    for gpu in node.topology.gpus:
        for near in found[gpu.key].best():
            names = one_line(near.port.device), str(near.port.number), near.link
            metric.add_metric([*gpu_labels(gpu), *names], 1)
    return metric
