"""A topology as JSON, for /topology, `affinityd topology --json` and node.json, and back.

Values that follow from others (online, packages, a node's cpulist, a NIC's nearness) are there for
readers: `from_document` ignores them. node.json is published beside the daemon's socket for clients
that run while no daemon does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from affinityd import config
from affinityd.cpuset import format_list, parse_list
from affinityd.errors import InvalidRequestError
from affinityd.json_codec import CpuList, decode, dumps, left_out, parsed
from affinityd.linux.files import read_regular, text, write_whole
from affinityd.topology.model import Core, Gpu, Nic, Node, NumaNode, Topology


@dataclass(frozen=True)
class PackageDocument:
    """A package (socket), and its online CPUs."""

    number: int
    cpulist: CpuList


@dataclass(frozen=True)
class NodeDocument:
    """A NUMA node; the one without a number holds the CPUs that no node lists."""

    number: int | None
    cpulist: CpuList  #: its online CPUs
    memory_bytes: int | None
    distances: Mapping[int, int]  #: node number → SLIT distance


@dataclass  # frozen takes twice as long to construct, and there are thousands
class CoreDocument:
    """A physical core, and its online CPUs; `llc` is the lowest CPU of its LLC group."""

    cpulist: CpuList
    numa_node: int | None
    package: int | None
    die: int | None
    llc: int
    is_slow: bool | None = left_out()  #: whether other cores here are of a faster kind


@dataclass(frozen=True, kw_only=True)
class NicDocument(Nic):
    """A network or InfiniBand adapter, and its nearness to each GPU, by the GPU's PCI bus id."""

    nearness: Mapping[str, str]


@dataclass(frozen=True)
class TopologyDocument:
    """The node as it was read."""

    name: str
    online: CpuList
    possible: CpuList
    packages: Sequence[PackageDocument]
    nodes: Sequence[NodeDocument]
    cores: Sequence[CoreDocument]
    gpus: Sequence[Gpu]
    nics: Sequence[NicDocument]
    notices: Sequence[str]  #: parts of the machine that could not be read, as sentences


@dataclass(frozen=True)
class TopologyAnswer:
    """The answer to `GET /topology`; each reading that differs begins a new generation."""

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
            CoreDocument(
                format_list(core.cpus),
                core.node,
                core.package,
                core.die,
                core.llc,
                is_slow=core.is_slow or None,
            )
            for core in topology.cores
        ],
        gpus=topology.gpus,
        nics=[
            NicDocument(
                **vars(nic),
                nearness={gpu.pci_bus_id: topology.nearness(gpu, nic) for gpu in topology.gpus},
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
                f"topology.nodes has no node {core.numa_node}, the node of CPU {cpus[0]}"
            )
        is_slow = bool(core.is_slow)
        cores.append(Core(cpus, core.numa_node, core.package, core.die, core.llc, is_slow))
    return Topology(
        name=document.name,
        cores=tuple(cores),
        nodes=tuple(
            NumaNode(node.number, node.memory_bytes, node.distances) for node in document.nodes
        ),
        gpus=tuple(document.gpus),
        nics=tuple(_nic(nic) for nic in document.nics),
        possible=parse_list(document.possible),
        notices=tuple(document.notices),
    )


def _nic(described: NicDocument) -> Nic:
    """Return a NIC without the fields that NicDocument adds."""
    return Nic(**{field.name: getattr(described, field.name) for field in fields(Nic)})


VERSION = 1
BOOT_ID = "/proc/sys/kernel/random/boot_id"  #: random(4): the id changes at each boot


@dataclass(frozen=True)
class NodeFileHead:
    """The fields that decide whether the rest is read."""

    version: int
    boot_id: str | None  #: the machine's, until its next boot; None: a sandbox hides it


@dataclass(frozen=True)
class NodeSettings:
    """The daemon's settings that affect a plan."""

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
    """Read a node back. Raises OSError; ValueError, one line, if the file is no node."""
    most = 64 * 1024 * 1024  # bytes; 65,536 CPUs take 10 MiB
    data = parsed(read_regular(os.fspath(path), most), path.name)
    head = decode(NodeFileHead, data, path.name)
    here = text(BOOT_ID)
    if head.version != VERSION:
        raise ValueError(f"{path.name} is of version {head.version}, not {VERSION}")
    if head.boot_id and here and head.boot_id != here:  # a sandbox may hide either of them
        raise ValueError(f"{path.name} is of another machine, or older than this machine's boot")
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
