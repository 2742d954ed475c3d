"""The tasks of a measurement: one for each NUMA node that has CPUs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from affinityd.cpuset import CpuSet
from affinityd.measure.document import OF_GPUS, OF_MEMORY, Figure, MeasuredGpu, Target
from affinityd.topology.model import Gpu, Topology
from affinityd.topology.nearness import vicinity


@dataclass(frozen=True)
class MemoryTarget:
    """A node whose memory is read, and its CPUs, from which it is filled; it may have none."""

    node: int
    cpus: CpuSet


@dataclass(frozen=True)
class NodeTask:
    """The work of one process, on the CPUs of one node."""

    node: int
    cpus: CpuSet
    memory: tuple[MemoryTarget, ...]
    gpus: tuple[Gpu, ...]
    home: int | None  #: the node of the memory that is copied: its own, else the nearest
    is_one_node: bool  #: one node alone has memory: then the place of memory is not checked

    @property
    def blanks(self) -> Iterator[Figure]:
        """The figures to be measured, in order, without values."""
        for target in self.memory:
            for quantity in OF_MEMORY:
                yield Figure(quantity, self.node, target.node, None)
        for gpu in self.gpus:
            for quantity in OF_GPUS:
                yield Figure(quantity, self.node, None, gpu.pci_bus_id)

    def after(self, target: Target) -> NodeTask:
        """Return the rest of it, after a target."""
        order = list(dict.fromkeys(it.target for it in self.blanks))
        left = order[order.index(target) + 1 :]
        return replace(
            self,
            memory=tuple(it for it in self.memory if it.node in left),
            gpus=tuple(it for it in self.gpus if it.pci_bus_id in left),
        )


def tasks(topology: Topology, gpus: Collection[Gpu]) -> list[NodeTask]:
    """Return the tasks for a machine and these GPUs of it, by ascending node."""
    memory = tuple(
        MemoryTarget(node, topology.cpus_of_node(node)) for node in topology.nodes_with_memory
    )
    return [
        NodeTask(
            node,
            topology.cpus_of_node(node),
            memory,
            tuple(gpus),
            home=topology.memory_node(node),
            is_one_node=len(memory) == 1,
        )
        for node in topology.nodes_with_cpus
        if node is not None
    ]


def measured_gpu(topology: Topology, gpu: Gpu) -> MeasuredGpu:
    """Return a GPU with the nodes of its near CPUs."""
    near = [node for node in vicinity(topology, [gpu]).nodes if node is not None]
    return MeasuredGpu(gpu.vendor, gpu.index, gpu.uuid, gpu.pci_bus_id, near)
