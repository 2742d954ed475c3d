"""The parts of a machine, frozen, and what the planner asks of them.

This folder reads no file of the machine: discovery makes a Topology, the other folders use it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from affinityd.config import ON
from affinityd.cpuset import CpuSet

T = TypeVar("T")

SLINGSHOT = "Slingshot"  #: the link layer of HPE's NICs
HUAWEI = "huawei"
HABANA = "1da3"
#: Vendors whose drivers make a file for each GPU: /dev/nvidiaN, /dev/davinciN, /dev/accel/accelN.
DEVICE_FILES = {"nvidia": "minor", HUAWEI: "davinci", HABANA: "accel"}

#: How near a NIC is to a GPU, nearest first, in the words of `nvidia-smi topo -m`.
PIX = "PIX"
PXB = "PXB"
PHB = "PHB"
NODE = "NODE"
SYS = "SYS"
LINKS = (PIX, PXB, PHB, NODE, SYS)
ON_SWITCH = (PIX, PXB)  #: GPU and NIC are beneath one PCI switch


class Core(NamedTuple):
    """A physical core: the online CPUs that share `thread_siblings_list`, ascending."""

    cpus: tuple[int, ...]
    node: int | None  #: NUMA node number; None where no node lists the core's first CPU
    package: int | None  #: physical_package_id
    die: int | None  #: die_id
    llc: int  #: the lowest CPU of the core's LLC group: the group's name
    is_slow: bool = False  #: whether other cores are of a faster kind


def cpus_of(cores: Iterable[Core]) -> CpuSet:
    """Return the CPUs of cores."""
    return frozenset(chain.from_iterable([core.cpus for core in cores]))


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node; the one with number None holds the CPUs that no node lists."""

    number: int | None
    memory_bytes: int | None = None  #: MemTotal; None: unknown
    distances: Mapping[int, int] = field(default_factory=dict)  #: node number → SLIT distance

    @property
    def order(self) -> tuple[bool, int]:
        """The sort key: the number; the node without a number is last."""
        return self.number is None, self.number or 0


@dataclass(frozen=True)
class MigInstance:
    """A part of an NVIDIA GPU; its place is the GPU's."""

    uuid: str


#: The unique name of a GPU on its machine: `Gpu.key`, its vendor and index.
GpuKey = tuple[str, int]


@dataclass(frozen=True)
class Gpu:
    """An accelerator, numbered as its vendor numbers it."""

    index: int  #: counted per vendor, in the order of NVML or KFD, else of PCI bus ids
    vendor: str  #: "nvidia", "amd", "huawei", else the PCI vendor's four hex digits
    pci_bus_id: str  #: 0000:07:00.0, lower case
    numa_node: int | None  #: None: unknown
    numa_source: str | None = None  #: how its NUMA node was found, for a plan's reasons
    uuid: str | None = None
    minor: int | None = None  #: of /dev/nvidiaN, /dev/accel/accelN
    render_minor: int | None = None  #: of /dev/dri/renderDN
    model: str | None = None
    pci_id: str | None = None  #: vendor:device, 10de:20b0
    pci_path: tuple[str, ...] = ()  #: from the host bridge down to the device, parents first
    mig: tuple[MigInstance, ...] = ()
    is_divided: bool = False  #: into MIG instances; without NVML their UUIDs are unknown

    @property
    def key(self) -> GpuKey:
        """A unique name on its machine; the PCI bus id is the same for all partitions."""
        return self.vendor, self.index

    @property
    def device_files(self) -> tuple[str, ...]:
        """The names of its device files, by their numbers: minor:0 is /dev/nvidia0."""
        kind = DEVICE_FILES.get(self.vendor)
        number = self.minor
        if self.vendor == HUAWEI:  # Huawei's driver numbers GPUs in bus order
            number = self.index
        files = []
        if kind and number is not None:
            files.append(f"{kind}:{number}")
        if self.render_minor is not None:
            files.append(f"drm:{self.render_minor}")
        return tuple(files)

    @property
    def container_names(self) -> tuple[str, ...]:
        """The GPU's names in containers: device files, UUIDs, PCI bus id."""
        uuids = (instance.uuid for instance in self.mig)
        return (*self.device_files, *filter(None, [self.uuid]), self.pci_bus_id, *uuids)


@dataclass(frozen=True)
class RdmaPort:
    """A port of an RDMA device: InfiniBand, RoCE, EFA or Slingshot."""

    device: str  #: the name for libraries: mlx5_2, rdmap16s27, cxi0
    number: int  #: from 1
    is_active: bool
    gbps: int | None = None  #: gigabits per second; None: the machine does not say
    link_layer: str | None = None  #: "InfiniBand", "Ethernet", SLINGSHOT; None: unknown, as for EFA
    netdev: str | None = None  #: name of its network interface; None: it has no known one

    @property
    def has_verbs(self) -> bool:
        """Whether libraries of verbs (libibverbs) use it."""
        return self.link_layer != SLINGSHOT


@dataclass(frozen=True)
class Nic:
    """A network or InfiniBand adapter (PCI class 02xx)."""

    pci_bus_id: str
    numa_node: int | None
    kind: str  #: "ethernet", "infiniband", "network"
    names: tuple[str, ...] = ()  #: names of its interfaces: mlx5_0, ib0
    pci_path: tuple[str, ...] = ()
    ports: tuple[RdmaPort, ...] = ()  #: ports of its RDMA devices
    physical: str | None = None  #: for a virtual function: PCI bus id of the physical function
    bond: str | None = None  #: the bond that its interfaces are in
    numa_source: str | None = None  #: how its NUMA node was found


@dataclass(frozen=True)
class Topology:
    """One machine, read once. Cores are ordered by their lowest CPU, nodes by their number."""

    name: str
    cores: tuple[Core, ...]
    nodes: tuple[NumaNode, ...]
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    possible: CpuSet = frozenset()
    notices: tuple[str, ...] = ()  #: parts of the machine that could not be read, as sentences

    def __hash__(self) -> int:
        """Hash only the name, which is fast; a cache then finds an object by its identity."""
        return hash(self.name)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle only the fields: other threads may be filling the caches meanwhile."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def online(self) -> CpuSet:
        """The CPUs that are online."""
        return cpus_of(self.cores)

    @cached_property
    def slow(self) -> CpuSet:
        """The online CPUs of a slower kind than others."""
        return cpus_of(core for core in self.cores if core.is_slow)

    @cached_property
    def node_of(self) -> Mapping[int | None, NumaNode]:
        """Node number → node."""
        return {node.number: node for node in self.nodes}

    @cached_property
    def node_cores(self) -> Mapping[int | None, tuple[Core, ...]]:
        """Node number → cores of the node, in order; () for a node without CPUs."""
        cores_of: dict[int | None, list[Core]] = {number: [] for number in self.node_of}
        for core in self.cores:
            if core.node in cores_of:
                cores_of[core.node].append(core)
        return {number: tuple(cores) for number, cores in cores_of.items()}

    @property
    def has_several_vendors(self) -> bool:
        """Whether there are GPUs of several vendors, each of which counts its own from 0."""
        return len({gpu.vendor for gpu in self.gpus}) > 1

    @cached_property
    def nodes_with_cpus(self) -> tuple[int | None, ...]:
        """The numbers of the nodes in which a process can run, in order."""
        return tuple(number for number, cores in self.node_cores.items() if cores)

    @cached_property
    def hides_nodes(self) -> bool:
        """Whether the kernel shows no NUMA node, though there are several packages."""
        return self.nodes_with_cpus == (None,) and len({core.package for core in self.cores}) > 1

    @cached_property
    def nodes_with_memory(self) -> tuple[int, ...]:
        """The numbers of the nodes that have memory, or may have some, in order."""
        nodes = (node for node in self.nodes if node.memory_bytes != 0)
        return tuple(node.number for node in nodes if node.number is not None)

    @cached_property
    def vendor(self) -> str | None:
        """The vendor whose GPUs a plain index means: the first GPU's; None without GPUs."""
        return self.gpus[0].vendor if self.gpus else None

    @cached_property
    def gpu_memory_nodes(self) -> frozenset[int]:
        """The nodes that are GPU memory, as on Grace; other nodes without CPUs are CXL memory."""
        # Models that share their memory with a Grace CPU: NVIDIA GH200 120GB, NVIDIA GB300.
        if not any(re.search(r"\bG[BH]\d00\b", gpu.model or "") for gpu in self.gpus):
            return frozenset()
        return frozenset(self.nodes_with_memory).difference(self.nodes_with_cpus)

    def cpus_of_node(self, number: int | None) -> CpuSet:
        """Return the online CPUs of a node."""
        return self._node_cpus.get(number, frozenset())

    @cached_property
    def _node_cpus(self) -> Mapping[int | None, CpuSet]:
        return {number: cpus_of(cores) for number, cores in self.node_cores.items()}

    def distance(self, start: int | None, end: int | None) -> float:
        """Return the SLIT distance between two nodes; a missing distance counts as the farthest."""
        if start is None or end is None or start not in self.node_of:
            return float("inf")
        return self.node_of[start].distances.get(end, float("inf"))

    def nearest(
        self, start: int | None, candidates: Collection[int | None]
    ) -> tuple[int | None, ...]:
        """Return the candidates nearest to a node, maybe that node; for None all candidates."""
        if start is not None and start in candidates:
            return (start,)
        least = min(self.distance(start, candidate) for candidate in candidates)
        return tuple(number for number in candidates if self.distance(start, number) == least)

    def memory_nodes(self, home: int | None) -> tuple[int | None, ...]:
        """Return the home node, or, if it has no memory, the nearest nodes with memory.

        A node without CPUs may be a GPU's memory, as on Grace: it counts only if no other node has
        memory.
        """
        of_cpus = tuple(node for node in self.nodes_with_memory if self.node_cores[node])
        with_memory = of_cpus or self.nodes_with_memory
        if not with_memory or home is None:
            return (home,)
        return self.nearest(home, with_memory)

    def memory_node(self, home: int | None) -> int | None:
        """Return the home node, or the first of the nearest with memory."""
        return self.memory_nodes(home)[0]

    def nearness(self, gpu: Gpu, nic: Nic) -> str:
        """Return how near a NIC is to a GPU, in the words of `nvidia-smi topo -m`."""
        shared = 0
        for of_gpu, of_nic in zip(gpu.pci_path, nic.pci_path, strict=False):
            if of_gpu != of_nic:
                break
            shared += 1
        below = max(len(gpu.pci_path), len(nic.pci_path)) - shared
        if shared > 1:  # both are below one PCI bridge; each port of a switch is a bridge
            return PIX if below <= 2 else PXB  # noqa: PLR2004
        if shared == 1:
            return PHB
        if gpu.numa_node is not None and gpu.numa_node == nic.numa_node:
            return NODE
        return SYS


@dataclass(frozen=True)
class Node:
    """The node that plans are made on; never changed, but replaced by a new object."""

    topology: Topology
    reserved: CpuSet = frozenset()
    generation: int = 1
    replayed: bool = False  #: whether the machine is another than this one
    switch: str = ON  #: the node's AFFINITYD

    __eq__ = object.__eq__  # comparing by fields would compare two machines core by core
    __hash__ = object.__hash__

    @cached_property
    def usable(self) -> CpuSet:
        """The online CPUs that are not reserved: one set object for the plans of all callers."""
        return self.topology.online - self.reserved


Keys = Mapping[GpuKey, GpuKey]  #: key of a GPU now → its key before the machine was read again


def keys_before(before: Topology, now: Topology) -> Keys:
    """Return the key of each GPU before the last reading, by its UUID, else by its PCI address."""

    def is_same(gpu: Gpu, other: Gpu) -> bool:
        if gpu.uuid and other.uuid:
            return gpu.uuid == other.uuid
        return gpu.pci_bus_id == other.pci_bus_id

    keys: dict[GpuKey, GpuKey] = {}
    for gpu in now.gpus:
        same = [other.key for other in before.gpus if is_same(gpu, other)]
        same = [
            key for key in same if key not in keys.values()
        ]  # a GPU may be several partitions now
        if gpu.key in same:  # partitions of a GPU have one address
            keys[gpu.key] = gpu.key
        elif same:
            keys[gpu.key] = same[0]
    return keys


def moved(values: Mapping[GpuKey, T], keys: Keys) -> dict[GpuKey, T]:
    """Return the values of GPUs by their new keys; values of GPUs that are gone are dropped."""
    return {now: values[before] for now, before in keys.items() if before in values}
