"""NUMA nodes: /sys/devices/system/node, and which CPU and PCI device belongs to which.

Sources: kernel `Documentation/ABI/stable/sysfs-devices-node` and `testing/sysfs-bus-pci`
(numa_node, local_cpulist, local_cpus).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from affinityd.cpuset import CpuSet
from affinityd.discovery.pci import DEVICES, PciDevice
from affinityd.discovery.tree import Tree
from affinityd.discovery.values import number, numbered, read_cpus, read_fields, read_number
from affinityd.topology.model import BY_NVML, NUMA_NODE, NumaNode

NODES = "sys/devices/system/node"


def read_nodes(tree: Tree) -> tuple[NumaNode, ...]:
    """Read every node that exists, with CPUs or without, ascending."""
    existing = numbered(tree, NODES, "node")
    # The node of each column in `nodeN/distance`.
    columns = sorted(read_cpus(tree, f"{NODES}/online") or existing)
    return tuple(
        NumaNode(node, _memory_bytes(tree, node), _distances(tree, node, columns))
        for node in existing
    )


def read_node_of_cpu(tree: Tree, nodes: tuple[NumaNode, ...], online: CpuSet) -> Mapping[int, int]:
    """Return CPU → its node, the lowest that lists it; a CPU that no node lists is missing."""
    node_of_cpu: dict[int, int] = {}
    for node in nodes:
        folder = f"{NODES}/node{node.number}"
        cpus = read_cpus(tree, f"{folder}/cpulist", f"{folder}/cpumap") or frozenset()
        for cpu in cpus & online:
            if node.number is not None:
                node_of_cpu.setdefault(cpu, node.number)
    return node_of_cpu


def _distances(tree: Tree, node: int, columns: Iterable[int]) -> Mapping[int, int]:
    """Read `nodeN/distance`; a row may be shorter or longer than the nodes that exist."""
    row = (tree.read(f"{NODES}/node{node}/distance") or "").split()
    values = ((column, number(text)) for column, text in zip(columns, row, strict=False))
    return {column: value for column, value in values if value is not None}


def _memory_bytes(tree: Tree, node: int) -> int | None:
    """Read `nodeN/meminfo`, whose lines are like `Node 0 MemTotal:  16772456 kB`."""
    name = f"Node {node} MemTotal"
    text = read_fields(tree, f"{NODES}/node{node}/meminfo", name).get(name, "")
    kilobytes = number(text.removesuffix("kB").strip())
    return None if kilobytes is None else kilobytes * 1024


#: A NUMA node and the source that decided it; both None: unknown.
Place = tuple[int | None, str | None]


@dataclass(frozen=True)
class NumaLocator:
    """Finds devices on a machine of these nodes and CPUs."""

    tree: Tree
    nodes: Collection[int | None]  #: the numbers of the nodes that exist
    online: CpuSet
    node_of_cpu: Mapping[int, int]  #: online CPU → its node

    def locate(self, device: PciDevice, nvml_cpus: CpuSet = frozenset()) -> Place:
        """Return a device's node and its source: NUMA_NODE, BY_NVML, "local_cpulist".

        A `numa_node` decides if that node exists, even without CPUs. Else the first source
        does whose CPUs are all in one node.
        """
        named = read_number(self.tree, f"{device.folder}/numa_node")
        if named is not None and named in self.nodes:
            return named, NUMA_NODE
        hints = ((self._only_node(cpus), source) for source, cpus in self._hints(device, nvml_cpus))
        return next(((node, source) for node, source in hints if node is not None), (None, None))

    def _hints(self, device: PciDevice, nvml_cpus: CpuSet) -> Iterator[tuple[str, CpuSet]]:
        """Yield the sources that name CPUs near a device, best first."""
        yield BY_NVML, nvml_cpus
        yield "local_cpulist", self._local_cpus(device.address)
        for bridge in device.path[-2:0:-1]:
            yield f"local_cpulist of bridge {bridge}", self._local_cpus(bridge)

    def _local_cpus(self, address: str) -> CpuSet:
        folder = f"{DEVICES}/{address}"
        cpus = read_cpus(self.tree, f"{folder}/local_cpulist", f"{folder}/local_cpus")
        return cpus or frozenset()

    def _only_node(self, cpus: CpuSet) -> int | None:
        """Return the node of all these CPUs that are online; None where that is not just one."""
        nodes = {self.node_of_cpu.get(cpu) for cpu in cpus & self.online}
        return nodes.pop() if len(nodes) == 1 else None
