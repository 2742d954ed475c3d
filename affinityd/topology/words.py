"""A machine for people: names, amounts, and packages with their NUMA nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from affinityd.cpuset import format_list, several
from affinityd.grouping import grouped
from affinityd.text import count
from affinityd.topology.model import Gpu, Nic, NumaNode, Topology


def totals(topology: Topology) -> Iterator[str]:
    """Yield how many CPUs, cores, packages, NUMA nodes, LLC groups and GPUs there are."""
    nodes = [node.number for node in topology.nodes if node.number is not None]
    with_cpus = sum(1 for number in nodes if topology.node_cores[number])
    yield count(len(topology.online), "CPU")
    yield count(len(topology.cores), "core")
    threads = {len(core.cpus) for core in topology.cores}
    yield "no SMT" if threads <= {1} else f"SMT{format_list(threads)}"
    yield count(len({core.package for core in topology.cores} - {None}), "package")
    yield count(len(nodes), "NUMA node") + (
        f" ({with_cpus} with CPUs)" if with_cpus < len(nodes) else ""
    )
    yield count(len({core.llc for core in topology.cores}), "LLC group")
    yield count(len(topology.gpus), "GPU")


def memory(node: NumaNode) -> str:
    """Return a node's amount of memory; empty: unknown."""
    if node.memory_bytes is None:
        return ""
    if node.memory_bytes == 0:
        return "no memory"
    gib = node.memory_bytes / 2**30
    return f"{gib:.0f} GiB" if gib >= 10 else f"{gib:.1f} GiB"  # noqa: PLR2004 - tenths below


def node_label(number: int | None, packages: Collection[int]) -> str:
    """Return a node's name, after those of the packages that are drawn with it."""
    name = "no NUMA node" if number is None else f"NUMA node {number}"
    return f"{several('package', packages)}, {name}" if packages else name


def devices_at(topology: Topology, number: int | None) -> tuple[list[Gpu], list[Nic]]:
    """Return the GPUs and NICs that are drawn at a node; None: those of unknown nodes."""

    def is_there(device: Gpu | Nic) -> bool:
        return number == (device.numa_node if device.numa_node in topology.node_of else None)

    return [*filter(is_there, topology.gpus)], [*filter(is_there, topology.nics)]


def nodes_without_cpus(topology: Topology) -> Iterator[list[NumaNode]]:
    """Yield the nodes without CPUs; those that differ only in their number are together."""

    def difference(node: NumaNode) -> object:
        return memory(node), node.number if any(devices_at(topology, node.number)) else None

    bare = [node for node in topology.nodes if not topology.node_cores[node.number]]
    yield from grouped(bare, difference).values()


def gpu_word(topology: Topology, gpu: Gpu) -> str:
    """Return the word before an index: each vendor counts its own GPUs."""
    return f"{gpu.vendor} GPU" if topology.has_several_vendors else "GPU"


def gpu_model(topology: Topology, gpu: Gpu) -> str:
    """Return the model, and the vendor if neither the model nor the name has it."""
    model = gpu.model or gpu.pci_id or ""
    is_said = gpu.vendor in model.lower() or topology.has_several_vendors
    return model if is_said else f"{gpu.vendor} {model}".rstrip()


def nic_kind(nic: Nic) -> Iterator[str]:
    """Yield the kind of an adapter, its speed, and why plans do not name it."""
    yield nic.kind
    yield from dict.fromkeys(
        f"{port.gbps} Gb/s" for port in nic.ports if port.is_active and port.gbps
    )
    if nic.ports and not any(port.is_active for port in nic.ports):
        yield "down"
    if nic.physical is not None:
        yield f"virtual function of {nic.physical}"
    if nic.bond is not None:
        yield f"in {nic.bond}"


class Place(NamedTuple):
    """Packages, and the NUMA nodes that have CPUs there: of one of the two there is only one."""

    packages: tuple[int, ...]  #: (): not known
    nodes: tuple[int | None, ...]  #: None: the CPUs that no node lists


def places(topology: Topology) -> Iterator[Place]:
    """Yield packages by number, then the nodes that are on several, or on unknown ones."""
    owners = {}
    for number in topology.nodes_with_cpus:
        owners[number] = {core.package for core in topology.node_cores[number]}
    # A core of no package belongs beneath none.
    torn = {None}.union(*(packages for packages in owners.values() if len(packages) > 1))
    known = sorted({core.package for core in topology.cores if core.package is not None})
    for package in known:
        if package not in torn:
            yield Place((package,), tuple(node for node in owners if package in owners[node]))
    for node, packages in owners.items():
        if packages & torn:
            yield Place(tuple(package for package in known if package in packages), (node,))
