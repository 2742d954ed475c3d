"""Words about a machine: names, amounts, packages with their NUMA nodes, and a tree of lines."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain

from affinityd.cpuset import format_list, several
from affinityd.grouping import grouped
from affinityd.text import count
from affinityd.topology.model import PHB, PIX, PXB, Core, Gpu, Nic, NumaNode, Topology, cpus_of
from affinityd.topology.nearness import name_gpus


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
    """Return a node's name, after the names of the packages that are drawn with it."""
    name = "no NUMA node" if number is None else f"NUMA node {number}"
    return f"{several('package', packages)}, {name}" if packages else name


def devices_at(topology: Topology, number: int | None) -> tuple[list[Gpu], list[Nic]]:
    """Return the GPUs and NICs that are drawn at a node; None: those whose node is unknown."""

    def is_there(device: Gpu | Nic) -> bool:
        return number == (device.numa_node if device.numa_node in topology.node_of else None)

    return [*filter(is_there, topology.gpus)], [*filter(is_there, topology.nics)]


def nodes_without_cpus(topology: Topology) -> Iterator[list[NumaNode]]:
    """Yield the nodes without CPUs; those that differ only in their number are grouped."""

    def difference(node: NumaNode) -> object:
        return memory(node), node.number if any(devices_at(topology, node.number)) else None

    bare = [node for node in topology.nodes if not topology.node_cores[node.number]]
    yield from grouped(bare, difference).values()


def gpu_word(topology: Topology, gpu: Gpu) -> str:
    """Return the word before an index: each vendor counts its own GPUs."""
    return f"{gpu.vendor} GPU" if topology.has_several_vendors else "GPU"


def gpu_model(topology: Topology, gpu: Gpu) -> str:
    """Return the model, with the vendor if neither the model nor the GPU's name includes it."""
    model = gpu.model or gpu.pci_id or ""
    is_said = gpu.vendor in model.lower() or topology.has_several_vendors
    return model if is_said else f"{gpu.vendor} {model}".rstrip()


def nic_kind(nic: Nic) -> Iterator[str]:
    """Yield the kind of an adapter, its speed, and, if plans do not name it, why."""
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


def places(topology: Topology) -> list[tuple[tuple[int, ...], list[int | None]]]:
    """Return the nodes with CPUs, by the packages that they are on; (): unknown."""

    def packages_of(number: int | None) -> tuple[int, ...]:
        packages = {core.package for core in topology.node_cores[number]}
        return tuple(sorted(package for package in packages if package is not None))

    return sorted(grouped(topology.nodes_with_cpus, packages_of).items())


def tree(topology: Topology) -> Iterator[str]:
    """Yield the machine as lines; each is indented below the line of the part that contains it."""
    yield f"{topology.name}: {', '.join(totals(topology))}"
    for packages, numbers in places(topology):
        if len(numbers) == 1 or not packages:
            for number in numbers:
                yield from _node(topology, number, "  ", packages)
            continue
        cores = chain.from_iterable(topology.node_cores[number] for number in numbers)
        yield f"  {several('package', packages)}: {_amount([*cores])}"
        for number in numbers:
            yield from _node(topology, number, "    ")
    for nodes in nodes_without_cpus(topology):
        each = " each" if len(nodes) > 1 and nodes[0].memory_bytes else ""
        size = memory(nodes[0])
        name = several("NUMA node", (node.number for node in nodes if node.number is not None))
        yield f"  {name}: {f'{size}{each}, ' if size else ''}no CPUs"
        yield from _devices(topology, nodes[0].number, "    ")
    unplaced = [*_devices(topology, None, "    ")]
    if unplaced:
        yield from ("  NUMA node unknown:", *unplaced)
    if offline := topology.possible - topology.online:
        yield f"  not online: {several('CPU', offline)}"


def _amount(cores: Sequence[Core]) -> str:
    return f"{count(len(cores), 'core')}, {several('CPU', cpus_of(cores))}"


def _node(
    topology: Topology, number: int | None, indent: str, packages: Sequence[int] = ()
) -> Iterator[str]:
    cores = topology.node_cores[number]
    size = memory(topology.node_of[number])
    yield f"{indent}{node_label(number, packages)}: {f'{size}, ' if size else ''}{_amount(cores)}"
    groups = [*grouped(cores, lambda core: core.llc).values()]
    if len(groups) == len(cores) > 1:
        yield f"{indent}  LLC    one for each core"
    elif len(groups) > 1:
        for cores_each, alike in grouped(groups, len).items():
            lists = [format_list(cpus_of(group)) for group in alike]
            yield f"{indent}  LLC    {len(lists)} x {count(cores_each, 'core')}  {'  '.join(lists)}"
    if number is not None:
        yield from _devices(topology, number, f"{indent}  ")


def _devices(topology: Topology, number: int | None, indent: str) -> Iterator[str]:
    gpus, nics = devices_at(topology, number)
    for gpu in gpus:
        mig = f"  {len(gpu.mig)} x MIG" if gpu.mig else ""
        name = f"{gpu_word(topology, gpu)} {gpu.index}"
        yield f"{indent}{name}  {gpu.pci_bus_id}  {gpu_model(topology, gpu)}{mig}".rstrip()
    for nic in nics:
        kind = ", ".join(nic_kind(nic))
        names = f"{', '.join(nic.names)} ({kind})" if nic.names else kind
        yield "  ".join([f"{indent}NIC    {nic.pci_bus_id}", names, *_near_gpus(topology, nic)])


def _near_gpus(topology: Topology, nic: Nic) -> Iterator[str]:
    """Yield the GPUs that share a switch with a NIC, or at least a host bridge."""
    for nearness in (PIX, PXB, PHB):
        near = [gpu for gpu in topology.gpus if topology.nearness(gpu, nic) == nearness]
        if near:
            names = name_gpus(near, with_vendor=topology.has_several_vendors)
            yield f"{nearness} to {names}"
