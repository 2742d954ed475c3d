"""The cores near each GPU of a node, in Slurm's numbers: the right `Cores=`.

Slurm takes hwloc's logical numbers, `Core L#` of `lstopo -l`: hwloc goes down from packages to
cores, and at each step first to the object with the lowest CPU. Threads have no numbers of their
own, and cores whose threads are all offline have none: when a core goes offline, the numbers after
it change. Settings for other sockets (SlurmdParameters=l3cache_as_socket, numa_node_as_socket)
change no number.

Source: Slurm's src/slurmd/common/xcpuinfo.c (xcpuinfo_hwloc_topo_get), gres.conf(5) "Cores".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from affinityd.cpuset import format_list
from affinityd.topology.model import Core, Topology
from affinityd.topology.nearness import near_nodes

CoreNumbers = frozenset[int]  #: cores by Slurm's numbers


def _holders(core: Core) -> tuple[object, ...]:
    """Return the objects that contain a core: package, die, node, last-level cache; None: unknown.

    Cores of no known package count as one package, as their core_siblings do.
    """
    die = None
    if core.die is not None:
        die = (core.package, core.die)
    return (core.package,), die, core.node, (core.node, core.llc)


def _is_nested(part: frozenset[int], parts: Iterable[frozenset[int]]) -> bool:
    """Return whether a part of the machine crosses no other; hwloc leaves out a part that does."""
    return all(part <= other or part >= other or part.isdisjoint(other) for other in parts)


@dataclass(frozen=True)
class SlurmCores:
    """The cores of a machine by Slurm's numbers."""

    topology: Topology

    @cached_property
    def order(self) -> tuple[Core, ...]:
        """The cores in the order of Slurm's numbers, from 0."""
        nested: list[frozenset[int]] = []  # a part: its cores, by their lowest CPUs
        firsts = [core.cpus[0] for core in self.topology.cores]
        for level in zip(*map(_holders, self.topology.cores), strict=True):
            members: dict[object, set[int]] = {}
            for holder, cpu in zip(level, firsts, strict=True):
                if holder is not None:
                    members.setdefault(holder, set()).add(cpu)
            for cpus in members.values():
                part = frozenset(cpus)
                if _is_nested(part, nested):
                    nested.append(part)

        def path(core: Core) -> list[int]:
            """Return the lowest CPUs of the parts around a core, widest first, then its own."""
            around = [part for part in nested if core.cpus[0] in part]
            around.sort(key=len)
            around.reverse()
            return [*(min(part) for part in around), core.cpus[0]]

        return tuple(sorted(self.topology.cores, key=path))

    def of_nodes(self, numbers: Collection[int | None]) -> CoreNumbers:
        """Return the cores of NUMA nodes."""
        return frozenset(place for place, core in enumerate(self.order) if core.node in numbers)

    def of_packages(self, cores: CoreNumbers) -> CoreNumbers:
        """Return all cores of the packages that contain these cores."""
        packages = {self.order[place].package for place in cores}
        return frozenset(place for place, core in enumerate(self.order) if core.package in packages)

    def settings(self) -> str | None:
        """Return the settings of slurm.conf for `Cores=` of NUMA nodes; None if nodes are packages.

        A GPU's jobs get the cores of its line only if these are whole sockets: packages, unless
        slurmd and the node's line of slurm.conf count NUMA nodes. NUMA nodes with different numbers
        of cores cannot be sockets: the text then names no numbers. Source: slurm.conf(5).
        """
        sizes = Counter(core.node for core in self.order)
        if len(sizes) <= len({core.package for core in self.order}):
            return None
        text = "SlurmdParameters=numa_node_as_socket"
        if len(set(sizes.values())) > 1:
            return text
        threads = max(len(core.cpus) for core in self.order)
        cores = len(self.order) // len(sizes)
        line = f"Sockets={len(sizes)} CoresPerSocket={cores} ThreadsPerCore={threads}"
        return f"{text} and, in the node's line, {line}"


@dataclass(frozen=True)
class CoreAffinity:
    """The right `Cores=` of one GPU."""

    right: CoreNumbers | None  #: None: no Cores=: all cores are right, or the node is unknown
    #: Near cores, and others that are as right: those of one near node, of a package; (): unknown.
    near: tuple[CoreNumbers, ...] = ()

    @property
    def field(self) -> str | None:
        """The field of the GPU's line: `Cores=0-31`."""
        if self.right is None:
            return None
        return f"Cores={format_list(self.right)}"


def affinities(cores: SlurmCores, scope: str) -> Mapping[tuple[str, int], CoreAffinity]:
    """Return the right `Cores=` of every GPU, by its key: near cores of nodes or of sockets."""
    every = frozenset(range(len(cores.order)))
    by_gpu: dict[tuple[str, int], CoreAffinity] = {}
    for gpu in cores.topology.gpus:
        nodes = near_nodes(cores.topology, gpu)
        if not nodes:
            by_gpu[gpu.key] = CoreAffinity(None)
            continue
        near = cores.of_nodes(nodes)
        of_each = [cores.of_nodes([node]) for node in nodes]
        packages = [cores.of_packages(numbers) for numbers in (near, *of_each)]
        right = near if scope == "node" else packages[0]
        if right == every:
            by_gpu[gpu.key] = CoreAffinity(None, (near, *of_each, *packages))
        else:
            smaller = [package for package in packages if package != every]
            by_gpu[gpu.key] = CoreAffinity(right, (near, *of_each, *smaller))
    return by_gpu
