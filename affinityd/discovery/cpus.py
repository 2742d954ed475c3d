"""CPUs, cores, caches and NUMA nodes: /sys/devices/system/cpu and /sys/devices/system/node.

Sources: kernel `Documentation/ABI/stable/sysfs-devices-system-cpu`, `sysfs-devices-node` and
`Documentation/admin-guide/cputopology.rst`.
"""

from __future__ import annotations

from collections.abc import Mapping

from affinityd.cpuset import MAX_CPUS, CpuSet
from affinityd.discovery.tree import MARK as CPUS
from affinityd.discovery.tree import Tree, number, numbered, read_cpus, read_fields, read_number
from affinityd.linux.syscalls import MAX_NODES
from affinityd.topology.model import Core, NumaNode


def read_online(tree: Tree) -> CpuSet:
    """Read `cpu/online`; without that file, take the CPUs that have a topology and are not off."""
    online = read_cpus(tree, f"{CPUS}/online")
    if online:
        return online
    return frozenset(
        cpu
        for cpu in _with_folder(tree)
        if tree.read(f"{CPUS}/cpu{cpu}/online") != "0"
        and tree.list(f"{CPUS}/cpu{cpu}", "topology".__eq__)
    )


def read_possible(tree: Tree, online: CpuSet) -> CpuSet:
    """Read `cpu/possible`, else take every CPU that has a folder."""
    return online | (read_cpus(tree, f"{CPUS}/possible") or _with_folder(tree))


def read_cores(tree: Tree, online: CpuSet, node_of_cpu: Mapping[int, int]) -> tuple[Core, ...]:
    """Read the cores of the online CPUs, in the order of each core's lowest CPU."""
    cache_of: dict[int, int] = {}  # CPU → the lowest CPU that shares its last-level cache
    groups: dict[tuple[object, ...], int] = {}  # shared cache of an LLC group → lowest CPU
    cores: list[Core] = []
    taken: set[int] = set()
    slow = _read_slow(tree, online)
    for cpu in sorted(online):
        if cpu in taken:
            continue
        folder = f"{CPUS}/cpu{cpu}"
        siblings = read_cpus(
            tree, f"{folder}/topology/thread_siblings_list", f"{folder}/topology/thread_siblings"
        )
        cpus = ({cpu, *(siblings or ())} & online) - taken
        taken |= cpus
        if cpu not in cache_of and (shared := _sharing_cache(tree, f"{folder}/cache")) is not None:
            sharers = {cpu, *(shared & online)}
            cache_of.update(dict.fromkeys(sharers, min(sharers)))
        node = node_of_cpu.get(cpu)
        package = read_number(tree, f"{folder}/topology/physical_package_id")
        group = (node, cache_of[cpu]) if cpu in cache_of else (node, "package", package)
        cores.append(
            Core(
                cpus=tuple(sorted(cpus)),
                node=node,
                package=package,
                die=read_number(tree, f"{folder}/topology/die_id"),
                llc=groups.setdefault(group, cpu),
                is_slow=cpu in slow,
            )
        )
    return tuple(cores)


def _read_slow(tree: Tree, online: CpuSet) -> CpuSet:
    """Return the CPUs that are slower than others, by Intel's cpu_atom, else by cpu_capacity."""
    atoms = read_cpus(tree, "sys/devices/cpu_atom/cpus")  # the efficient cores of hybrid CPUs
    if atoms is not None:
        return atoms & online
    if tree.read(f"{CPUS}/cpu{min(online)}/cpu_capacity") is None:
        return frozenset()
    capacities = {cpu: read_number(tree, f"{CPUS}/cpu{cpu}/cpu_capacity") or 0 for cpu in online}
    most = max(capacities.values())
    return frozenset(cpu for cpu in online if capacities[cpu] < most)


def _with_folder(tree: Tree) -> CpuSet:
    return frozenset(cpu for cpu in numbered(tree, CPUS, "cpu") if cpu < MAX_CPUS)


def _sharing_cache(tree: Tree, folder: str) -> CpuSet | None:
    """Return the CPUs of the highest-level cache that holds data; None if no cache is described."""
    paths = [f"{folder}/index{index}" for index in numbered(tree, folder, "index")]
    levels = [(read_number(tree, f"{path}/level") or 0, path) for path in paths]
    for _, path in sorted(levels, reverse=True):
        if tree.read(f"{path}/type") in ("Unified", "Data"):
            return read_cpus(tree, f"{path}/shared_cpu_list", f"{path}/shared_cpu_map")
    return None


NODES = "sys/devices/system/node"


def read_nodes(tree: Tree) -> tuple[NumaNode, ...]:
    """Read every node that exists, with CPUs or without, ascending."""
    existing = [node for node in numbered(tree, NODES, "node") if node < MAX_NODES]
    columns = sorted(read_cpus(tree, f"{NODES}/online") or existing)  # of `nodeN/distance`
    nodes = []
    for node in existing:
        folder = f"{NODES}/node{node}"
        memory = f"Node {node} MemTotal"
        # A row may be shorter or longer than the list of existing nodes.
        row = map(number, (tree.read(f"{folder}/distance") or "").split())
        distances = {
            to: value for to, value in zip(columns, row, strict=False) if value is not None
        }
        kilobytes = read_fields(tree, f"{folder}/meminfo", memory).get(memory, "")  # 16772456 kB
        size = number(kilobytes.removesuffix("kB").strip())
        nodes.append(NumaNode(node, None if size is None else size * 1024, distances))
    return tuple(nodes)


def read_node_of_cpu(tree: Tree, nodes: tuple[NumaNode, ...], online: CpuSet) -> Mapping[int, int]:
    """Return CPU → the lowest node that lists it; a CPU that no node lists is missing."""
    node_of_cpu: dict[int, int] = {}
    for node in nodes:
        if not online:
            break
        folder = f"{NODES}/node{node.number}"
        cpus = read_cpus(tree, f"{folder}/cpulist", f"{folder}/cpumap") or frozenset()
        if node.number is not None:
            node_of_cpu.update(dict.fromkeys(cpus & online, node.number))
            online -= cpus
    return node_of_cpu
