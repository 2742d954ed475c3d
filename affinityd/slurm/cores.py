"""The cores near each GPU of a node, in Slurm's numbers: the right `Cores=`.

Slurm takes hwloc's logical numbers, `Core L#` of `lstopo -l`: it goes down from packages to cores,
and at each step first to the object with the lowest CPU. Threads do not count, nor do cores whose
threads are all offline: when one goes offline, the numbers after it change. Other sockets by
configuration (SlurmdParameters=l3cache_as_socket, numa_node_as_socket) change no number.

Source: Slurm's src/slurmd/common/xcpuinfo.c (xcpuinfo_hwloc_topo_get), gres.conf(5) "Cores".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from affinityd.cpuset import format_list, named_nodes, named_packages
from affinityd.planner.domains import home_nodes
from affinityd.topology.model import Core, Gpu, Topology

SCOPES = ("node", "socket")

CoreNumbers = frozenset[int]  #: cores by Slurm's numbers

#: Objects that hold cores, by name; None: unknown (cores of no known package are one, as their
#: core_siblings are). An object across parts of an earlier level does not count, as in hwloc.
LEVELS: tuple[Callable[[Core], object], ...] = (
    lambda core: (core.package,),
    lambda core: None if core.die is None else (core.package, core.die),
    lambda core: core.node,
    lambda core: (core.node, core.llc),
)


@dataclass(frozen=True)
class SlurmCores:
    """The cores of a machine under Slurm's numbers."""

    topology: Topology

    @cached_property
    def order(self) -> tuple[Core, ...]:
        """The cores: the place of each is its number."""
        return in_slurms_order(self.topology)

    @cached_property
    def all(self) -> CoreNumbers:
        """Every number that there is."""
        return frozenset(range(len(self.order)))

    def of_node(self, number: int | None) -> CoreNumbers:
        """Return the cores of a NUMA node."""
        return frozenset(place for place, core in enumerate(self.order) if core.node == number)

    def of_packages(self, cores: CoreNumbers) -> CoreNumbers:
        """Return all cores of the packages that these are in."""
        packages = self.packages(cores)
        return frozenset(place for place, core in enumerate(self.order) if core.package in packages)

    def nodes(self, cores: CoreNumbers) -> frozenset[int | None]:
        """Return the numbers of the NUMA nodes that these are in."""
        return frozenset(self.order[place].node for place in cores)

    def packages(self, cores: CoreNumbers) -> frozenset[int | None]:
        """Return the numbers of the packages that these are in."""
        return frozenset(self.order[place].package for place in cores)


@dataclass(frozen=True)
class CoreAffinity:
    """The right `Cores=` of one GPU."""

    gpu: Gpu
    cores: SlurmCores
    right: CoreNumbers | None  #: None: no Cores=, as every core will do, or it is not known which
    #: The home node's, and equally right ones: a tied node's, a package's; (): unknown.
    near: tuple[CoreNumbers, ...] = ()

    @property
    def field(self) -> str | None:
        """As it is written: `Cores=0-31`."""
        return None if self.right is None else f"Cores={format_list(self.right)}"

    def fault(self, said: CoreNumbers | None) -> str | None:
        """Return the error of a line's Cores=; None: it has none, or that is unknown."""
        if said is None:
            return self.field and f"the line has no Cores=, {self._home()}; add {self.field}"
        if said in self.near:
            return None
        fault = self._beyond(said) or self._elsewhere(said)
        return fault and f"Cores={format_list(said)} {fault}; right is {self.field or 'no Cores='}"

    def _beyond(self, said: CoreNumbers) -> str | None:
        cpus_of = [[self.cores.order[place].cpus for place in cores] for cores in self.near]
        if any(said in ({*chain(*cpus)}, {*map(min, cpus)}) for cpus in cpus_of):
            return "are the CPU numbers of the right cores, and Slurm counts cores"
        if said <= self.cores.all:
            return None
        last = len(self.cores.order) - 1
        guess = ": CPU numbers? Slurm counts cores" if said <= self.cores.topology.online else ""
        return f"goes beyond core {last}, the last of this node{guess}"

    def _elsewhere(self, said: CoreNumbers) -> str | None:
        if not self.near:
            return None
        own, home, cores = self.near[0], self._home(), self.cores
        elsewhere = named_packages(cores.packages(said))
        if elsewhere and not cores.packages(said) & cores.packages(own):
            return f"is {elsewhere}, {home}"
        if said.isdisjoint(own):
            return f"is {named_nodes(cores.nodes(said))}, {home}"
        if said < own:
            return f"leaves out cores {format_list(own - said)}, {home}"
        others = said - own
        return f"has cores {format_list(others)} of {named_nodes(cores.nodes(others))}, {home}"

    def _home(self) -> str:
        nodes = self.cores.nodes(self.near[0])
        package = named_packages(self.cores.packages(self.near[0]))
        place = f"{package} ({named_nodes(nodes)})" if package else named_nodes(nodes)
        is_own = self.gpu.numa_node in nodes
        return f"the GPU is on {place}" if is_own else f"the nearest cores are on {place}"


def affinities(cores: SlurmCores, scope: str) -> Mapping[tuple[str, int], CoreAffinity]:
    """Return the right `Cores=` of every GPU, by its key.

    A GPU on a node without CPUs gets the nearest node that has some; where several are equally
    near, the one that a plan for all GPUs would take. `scope`: of `SCOPES`.
    """
    topology = cores.topology
    placed = [gpu for gpu in topology.gpus if gpu.numa_node is not None]
    nodes = home_nodes(topology, placed, topology.online)
    homes = {gpu.key: node for gpu, node in zip(placed, nodes, strict=True)}
    return {gpu.key: _affinity(cores, gpu, homes.get(gpu.key), scope) for gpu in topology.gpus}


def _affinity(cores: SlurmCores, gpu: Gpu, home: int | None, scope: str) -> CoreAffinity:
    with_cpus = cores.topology.nodes_with_cpus
    if gpu.numa_node is None and len(with_cpus) > 1:
        return CoreAffinity(gpu, cores, None)
    nodes = cores.topology.nearest(gpu.numa_node, with_cpus)
    own = [cores.of_node(node) for node in (home, *nodes) if node in nodes]
    wider = map(cores.of_packages, own)
    right = own[0] if scope == "node" else cores.of_packages(own[0])
    if right == cores.all:
        return CoreAffinity(gpu, cores, None, (*own, *wider))
    near = (*own, *(package for package in wider if package != cores.all))
    return CoreAffinity(gpu, cores, right, near)


def in_slurms_order(topology: Topology) -> tuple[Core, ...]:
    """Return the cores of a machine: the place of each is its number."""
    nested: list[frozenset[int]] = []  # parts of the machine: cores, each by its lowest CPU
    for level in LEVELS:
        members: dict[object, set[int]] = {}
        for core in topology.cores:
            members.setdefault(level(core), set()).add(core.cpus[0])
        members.pop(None, None)
        nested += [
            frozenset(part)
            for part in members.values()
            if all(part <= it or part >= it or part.isdisjoint(it) for it in nested)
        ]

    def path(core: Core) -> list[int]:
        """Return the lowest CPU of all that the core is in, the widest first, itself last."""
        around = sorted((part for part in nested if core.cpus[0] in part), key=len, reverse=True)
        return [*map(min, around), core.cpus[0]]

    return tuple(sorted(topology.cores, key=path))
