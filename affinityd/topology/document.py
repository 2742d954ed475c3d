"""A topology in JSON, for /topology, `affinityd topology --json` and node.json, and back.

Values that follow from others (online, packages, a node's cpulist, a NIC's nearness, the attributes
of DRA) are there for readers: `from_document` ignores them. node.json is published beside the
daemon's socket for clients that outlive it.

Sources of the attributes: KEP-6072, "Standard numaNode Device Attribute"; Kubernetes 1.37,
staging/src/k8s.io/dynamic-resource-allocation/deviceattribute, numa_linux.go and pci_linux.go.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

from affinityd import config
from affinityd.cpuset import format_list, parse_list
from affinityd.errors import InvalidRequestError
from affinityd.json_codec import CpuList, decode, dumps, parsed
from affinityd.linux.files import read_regular, text, write_whole
from affinityd.topology.model import NUMA_NODE, Core, Gpu, Nic, Node, NumaNode, Topology


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
        numaNode=None if node is None else tuple(_with_nodes_beside(topology, node)),
        pcieRoot=next((part for part in device.pci_path[:1] if part.startswith("pci")), None),
        pciBusID=device.pci_bus_id,
    )


def _with_nodes_beside(topology: Topology, node: int) -> Iterator[int]:
    """Yield a node, then the nodes nearest to it, ascending, without those of another package.

    Nodes at an equal distance are equally near. A node whose package is unknown, since it has no
    CPUs, counts as one of the same package. No distances: the node alone.
    """
    yield node
    cores, numa_node = topology.node_cores, topology.node_of.get(node)
    packages = {number: cores[number][0].package for number in topology.nodes_with_cpus}
    others = {**numa_node.distances} if numa_node else {}
    others.pop(node, None)
    for other in sorted(others):
        known = {packages.get(node), packages.get(other)} - {None}
        if others[other] == min(others.values()) and len(known) < 2:  # noqa: PLR2004
            yield other


Device = TypeVar("Device", Gpu, Nic)


@dataclass(frozen=True)
class PackageDocument:
    """A package (socket), and its online CPUs."""

    number: int
    cpulist: CpuList


@dataclass(frozen=True)
class NodeDocument:
    """A NUMA node; without a number the one that holds the CPUs that no node lists."""

    number: int | None
    cpulist: CpuList  #: its online CPUs
    memory_bytes: int | None
    distances: Mapping[int, int]  #: node number → SLIT distance


@dataclass  # frozen would take twice as long to make, and there are thousands
class CoreDocument:
    """A physical core, and its online CPUs; `llc` is the lowest CPU of its LLC group."""

    cpulist: CpuList
    numa_node: int | None
    package: int | None
    die: int | None
    llc: int


@dataclass(frozen=True, kw_only=True)
class GpuDocument(Gpu):
    """A GPU, and the attributes that a driver of DRA publishes for it."""

    #: None: of an earlier release
    dra: DraAttributes | None


@dataclass(frozen=True, kw_only=True)
class NicDocument(Nic):
    """A network or InfiniBand adapter, and how near it is to each GPU, by its PCI bus id."""

    nearness: Mapping[str, str]
    dra: DraAttributes | None


@dataclass(frozen=True)
class TopologyDocument:
    """The node as it was read."""

    name: str
    online: CpuList
    possible: CpuList
    packages: Sequence[PackageDocument]
    nodes: Sequence[NodeDocument]
    cores: Sequence[CoreDocument]
    gpus: Sequence[GpuDocument]
    nics: Sequence[NicDocument]
    notices: Sequence[str]  #: parts that could not be read, for people


@dataclass(frozen=True)
class TopologyAnswer:
    """The answer to `GET /topology`; each reading of the node that differs is a new generation."""

    generation: int
    topology: TopologyDocument


def to_document(topology: Topology) -> TopologyDocument:
    """Return a topology as its document has it."""
    packages: dict[int, list[int]] = {}
    for core in topology.cores:
        if core.package is not None:
            packages.setdefault(core.package, []).extend(core.cpus)
    return TopologyDocument(
        name=topology.name,
        online=format_list(topology.online),
        possible=format_list(topology.possible),
        packages=[PackageDocument(each, format_list(packages[each])) for each in sorted(packages)],
        nodes=[
            NodeDocument(
                node.number,
                format_list(topology.cpus_of_node(node.number)),
                node.memory_bytes,
                node.distances,
            )
            for node in topology.nodes
        ],
        cores=[
            CoreDocument(format_list(core.cpus), core.node, core.package, core.die, core.llc)
            for core in topology.cores
        ],
        gpus=[GpuDocument(**vars(gpu), dra=attributes_of(topology, gpu)) for gpu in topology.gpus],
        nics=[
            NicDocument(
                **vars(nic),
                nearness={gpu.pci_bus_id: topology.nearness(gpu, nic) for gpu in topology.gpus},
                dra=attributes_of(topology, nic),
            )
            for nic in topology.nics
        ],
        notices=topology.notices,
    )


def from_document(document: TopologyDocument) -> Topology:
    """Return the topology. Raises ValueError, one line, if its parts contradict each other."""
    numbers = {node.number for node in document.nodes}
    cores = []
    for place, core in enumerate(document.cores):
        cpus = tuple(sorted(parse_list(core.cpulist)))
        if not cpus:
            raise ValueError(
                f"topology.cores[{place}].cpulist is empty; a core has at least one CPU"
            )
        if core.numa_node not in numbers:
            raise ValueError(
                f"topology.nodes has no number {core.numa_node}, which CPU {cpus[0]} is on"
            )
        cores.append(Core(cpus, core.numa_node, core.package, core.die, core.llc))
    return Topology(
        name=document.name,
        cores=tuple(cores),
        nodes=tuple(
            NumaNode(node.number, node.memory_bytes, node.distances) for node in document.nodes
        ),
        gpus=tuple(_as(Gpu, gpu) for gpu in document.gpus),
        nics=tuple(_as(Nic, nic) for nic in document.nics),
        possible=parse_list(document.possible),
        notices=tuple(document.notices),
    )


def _as(kind: type[Device], described: Device) -> Device:
    """Return a device without the values that its document adds."""
    return kind(**{field.name: getattr(described, field.name) for field in fields(kind)})


VERSION = 1
BOOT_ID = "/proc/sys/kernel/random/boot_id"  #: random(4): another one after each boot
MAX_BYTES = 64 * 1024 * 1024  #: 65,536 CPUs take 10


@dataclass(frozen=True)
class NodeFileHead:
    """The fields that decide whether to read the rest."""

    version: int
    boot_id: str | None  #: of the machine, as long as it runs; None: a sandbox hides it


@dataclass(frozen=True)
class NodeSettings:
    """The daemon's settings that count for a plan."""

    reserved_cpus: CpuList
    switch: str = config.ON  #: an earlier release does not write it


@dataclass(frozen=True)
class NodeFile(NodeFileHead):
    """node.json."""

    generation: int
    replayed: bool
    settings: NodeSettings
    topology: TopologyDocument


def write_node(path: Path, node: Node) -> None:
    """Write a node atomically, readable by every user. Raises OSError."""
    file = NodeFile(
        version=VERSION,
        boot_id=text(BOOT_ID) or None,
        generation=node.generation,
        replayed=node.replayed,
        settings=NodeSettings(format_list(node.reserved), node.switch),
        topology=to_document(node.topology),
    )
    write_whole(path, f"{dumps(file)}\n".encode())


def read_node(path: Path) -> Node:
    """Read a node back. Raises OSError; ValueError, one line, if it is no node."""
    data = parsed(read_regular(os.fspath(path), MAX_BYTES), path.name)
    head, here = decode(NodeFileHead, data, path.name), text(BOOT_ID)
    if head.version != VERSION:
        raise ValueError(f"{path.name} is of version {head.version}, not {VERSION}")
    if head.boot_id and here and head.boot_id != here:  # a sandbox may hide either
        raise ValueError(f"{path.name} is another machine's, or from before this one was booted")
    file = decode(NodeFile, data, path.name)
    if file.generation < 1:
        raise ValueError(f"{path.name}.generation is {file.generation}; the first is 1")
    try:
        switch = config.read_switch(file.settings.switch, f"{path.name}.settings.switch")
    except InvalidRequestError as error:
        raise ValueError(str(error)) from None
    return Node(
        topology=from_document(file.topology),
        reserved=parse_list(file.settings.reserved_cpus),
        generation=file.generation,
        replayed=file.replayed,
        switch=switch,
    )
