"""The attributes by which drivers of Dynamic Resource Allocation (DRA) describe a PCI device. Pure.

Sources: KEP-6072, "Standard numaNode Device Attribute"; Kubernetes 1.37,
staging/src/k8s.io/dynamic-resource-allocation/deviceattribute, numa_linux.go and pci_linux.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from affinityd.topology.model import NUMA_NODE, Gpu, Nic, Topology


@dataclass(frozen=True)
class DraAttributes:
    """A device's attributes, whose full names begin with `resource.kubernetes.io/`."""

    #: Its NUMA node, then those next to it; None: the kernel's numa_node names no node.
    numaNode: Sequence[int] | None  # noqa: N815 - Kubernetes' name, as the other two
    pcieRoot: str | None  # noqa: N815 - its host bridge: pci0000:15
    pciBusID: str  # noqa: N815


def attributes_of(topology: Topology, device: Gpu | Nic) -> DraAttributes:
    """Return the attributes that a driver publishes for a device, in the form of lists.

    Only the kernel's `numa_node` counts, as for drivers: no other source of the device's node.
    """
    node = device.numa_node if device.numa_source in (NUMA_NODE, None) else None
    return DraAttributes(
        numaNode=None if node is None else _with_nodes_beside(topology, node),
        pcieRoot=next((part for part in device.pci_path[:1] if part.startswith("pci")), None),
        pciBusID=device.pci_bus_id,
    )


def _with_nodes_beside(topology: Topology, node: int) -> Sequence[int]:
    """Return a node, then the nodes nearest to it, ascending, without those of another package.

    Nodes at an equal distance are equally near. A node whose package is unknown, since it has no
    CPUs, counts as one of the same package. No distances: the node alone.
    """
    known = topology.node_of.get(node)
    distances = {it: far for it, far in known.distances.items() if it != node} if known else {}
    own = _package(topology, node)
    return node, *(
        it
        for it, far in sorted(distances.items())
        if far == min(distances.values()) and (own is None or _package(topology, it) in (own, None))
    )


def _package(topology: Topology, node: int) -> int | None:
    return next((core.package for core in topology.node_cores.get(node, ())), None)
