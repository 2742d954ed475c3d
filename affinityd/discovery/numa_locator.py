"""On which NUMA node a PCI device is, and which source says so.

Sources: kernel `Documentation/ABI/testing/sysfs-bus-pci` (numa_node, local_cpulist, local_cpus).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from affinityd.cpuset import CpuSet
from affinityd.discovery.pci import DEVICES, PciDevice
from affinityd.discovery.tree import Tree
from affinityd.discovery.values import read_cpus, read_number

#: A NUMA node and the source that decided it; both None: the machine does not say.
Place = tuple[int | None, str | None]


@dataclass(frozen=True)
class NumaLocator:
    """Finds devices on a machine of these nodes and CPUs."""

    tree: Tree
    nodes: Collection[int | None]  #: the numbers of the nodes that exist
    online: CpuSet
    node_of_cpu: Mapping[int, int]  #: online CPU → its node

    def locate(self, device: PciDevice, nvml_cpus: CpuSet = frozenset()) -> Place:
        """Return a device's node and what said so: "numa_node", "NVML", "local_cpulist".

        A `numa_node` decides if that node exists, even without CPUs. Else the first source does
        of which all CPUs lie in one node.
        """
        named = read_number(self.tree, f"{device.folder}/numa_node")
        if named is not None and named in self.nodes:
            return named, "numa_node"
        hints = ((self._only_node(cpus), source) for source, cpus in self._hints(device, nvml_cpus))
        return next(((node, source) for node, source in hints if node is not None), (None, None))

    def _hints(self, device: PciDevice, nvml_cpus: CpuSet) -> Iterator[tuple[str, CpuSet]]:
        """Yield the sources that name CPUs near a device, best first."""
        yield "NVML", nvml_cpus
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
