"""CPUs, cores, caches and NUMA nodes: /sys/devices/system/cpu and /sys/devices/system/node.

Sources: kernel `Documentation/ABI/stable/sysfs-devices-system-cpu`, `sysfs-devices-node` and
`Documentation/admin-guide/cputopology.rst`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from affinityd.cpuset import MAX_CPUS, CpuSet
from affinityd.discovery.tree import MARK as CPUS
from affinityd.discovery.tree import Tree, number, numbered, read_cpus, read_fields, read_number
from affinityd.topology.model import Core, NumaNode

#: The cache types that hold data; an Instruction cache says nothing about memory.
_DATA_CACHES = ("Unified", "Data")


def read_online(tree: Tree) -> CpuSet:
    """Read `cpu/online`; on a tree without it, the CPUs that have a topology and are not off."""
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
    """Read `cpu/possible`, else `cpu/present`, else take every CPU that has a folder."""
    for name in ("possible", "present"):
        cpus = read_cpus(tree, f"{CPUS}/{name}")
        if cpus:
            return cpus | online
    return online | _with_folder(tree)


def read_cores(tree: Tree, online: CpuSet, node_of_cpu: Mapping[int, int]) -> tuple[Core, ...]:
    """Read the cores of the online CPUs, ordered by their lowest CPU; one read a core, not a CPU.

    `node_of_cpu`: CPU → NUMA node.
    """
    caches = _Caches(tree, online)
    groups: dict[tuple[object, ...], int] = {}  # the shared cache of an LLC group → its lowest CPU
    cores: list[Core] = []
    taken: set[int] = set()
    for cpu in sorted(online):
        if cpu in taken:
            continue
        topology = f"{CPUS}/cpu{cpu}/topology"
        cpus = (_siblings(tree, cpu) & online) - taken
        taken |= cpus
        node = node_of_cpu.get(cpu)
        package = read_number(tree, f"{topology}/physical_package_id")
        cache = caches.of(cpu)
        group = (node, "package", package) if cache is None else (node, cache)
        cores.append(
            Core(
                cpus=tuple(sorted(cpus)),
                node=node,
                package=package,
                die=read_number(tree, f"{topology}/die_id"),
                llc=groups.setdefault(group, cpu),
            )
        )
    return tuple(cores)


def _with_folder(tree: Tree) -> CpuSet:
    return frozenset(cpu for cpu in numbered(tree, CPUS, "cpu") if cpu < MAX_CPUS)


def _siblings(tree: Tree, cpu: int) -> CpuSet:
    topology = f"{CPUS}/cpu{cpu}/topology"
    siblings = read_cpus(tree, f"{topology}/thread_siblings_list", f"{topology}/thread_siblings")
    return (siblings or frozenset()) | {cpu}


class _Caches:
    """The highest-level Unified or Data cache of each CPU, read once for all that share it."""

    def __init__(self, tree: Tree, online: CpuSet) -> None:
        self._tree = tree
        self._online = online
        self._known: dict[int, int] = {}

    def of(self, cpu: int) -> int | None:
        """Return the lowest CPU that shares the cache, its name; None if no cache is described."""
        if cpu not in self._known:
            shared = self._shared(f"{CPUS}/cpu{cpu}/cache")
            if shared is None:
                return None
            sharers = (shared & self._online) | {cpu}
            self._known.update(dict.fromkeys(sharers, min(sharers)))
        return self._known[cpu]

    def _shared(self, folder: str) -> CpuSet | None:
        paths = [f"{folder}/index{index}" for index in numbered(self._tree, folder, "index")]
        levels = [(read_number(self._tree, f"{path}/level") or 0, path) for path in paths]
        for _, path in sorted(levels, reverse=True):
            if self._tree.read(f"{path}/type") in _DATA_CACHES:
                return read_cpus(self._tree, f"{path}/shared_cpu_list", f"{path}/shared_cpu_map")
        return None


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
