"""Home nodes and their domains: the cores that the ranks of a node may get, in order.

A domain is a sequence of bundles. A bundle is dealt as one: a near core, and after it its
partners (cores of the same package that are near to no planned rank).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, zip_longest
from typing import TYPE_CHECKING, TypeVar

from affinityd.cpuset import CpuSet
from affinityd.topology.model import Core, Gpu, Topology

if TYPE_CHECKING:
    K = TypeVar("K")

Bundle = tuple[Core, ...]
Domain = tuple[Bundle, ...]


@dataclass(frozen=True)
class RankGroup:
    """Ranks that divide one domain, in request order."""

    ranks: tuple[int, ...]
    domain: Domain
    home: int | None  #: the home node of all of them; None also where the domain is everywhere


def usable(cores: Iterable[Core], allowed: CpuSet) -> tuple[Core, ...]:
    """Return the cores that count, in their order, each cut down to its allowed CPUs.

    A core counts if any of its CPUs is allowed.
    """
    found = []
    for core in cores:
        if allowed.issuperset(core.cpus):
            found.append(core)
        elif cpus := tuple(cpu for cpu in core.cpus if cpu in allowed):
            found.append(Core(cpus, core.node, core.package, core.die, core.llc))
    return tuple(found)


def home_nodes(topology: Topology, gpus: Sequence[Gpu], allowed: CpuSet) -> list[int | None]:
    """Return each rank's home node: the GPU's own if it has an allowed CPU, else the nearest.

    Ranks without a choice are placed first; the others in rank order, each on the tied node that
    is home to fewest so far, then on the lowest number. `allowed` must hold an online CPU.
    """
    candidates = [
        number
        for number in topology.nodes_with_cpus
        if not allowed.isdisjoint(topology.cpus_of_node(number))
    ]
    nearest = [topology.nearest(gpu.numa_node, candidates) for gpu in gpus]
    homes: dict[int, int | None] = {}
    ranks_at: dict[int | None, int] = dict.fromkeys(candidates, 0)
    for rank in sorted(range(len(gpus)), key=lambda rank: len(nearest[rank]) > 1):
        home = min(
            nearest[rank], key=lambda number: (ranks_at[number], topology.node_of[number].order)
        )
        homes[rank] = home
        ranks_at[home] += 1
    return [homes[rank] for rank in range(len(gpus))]


def locality(topology: Topology, gpu: Gpu, nodes: Collection[int | None]) -> str:
    """Return "local", "remote" or "unknown": the place of all these nodes, seen from a GPU."""
    if len(topology.nodes_with_cpus) == 1:
        return "local"
    if gpu.numa_node is None:
        return "unknown"
    return "local" if all(node == gpu.numa_node for node in nodes) else "remote"


def domains_of(
    topology: Topology, homes: Collection[int | None], allowed: CpuSet, *, scope: str, unique: bool
) -> dict[int | None, Domain]:
    """Return the domain of each home node; `unique`: its ranks must not overlap with others'."""
    if scope == "node":
        return {home: single_bundles(usable(topology.node_cores[home], allowed)) for home in homes}
    if unique:
        return _with_partners(topology, homes, allowed)
    return {home: socket(topology, home, allowed) for home in homes}


def nearest_first(topology: Topology, home: int | None) -> list[int | None]:
    """Return the numbers of the nodes: the home node, then the nearest, then the lowest number."""
    nodes = sorted(
        topology.nodes,
        key=lambda node: (node.number != home, topology.distance(home, node.number), node.order),
    )
    return [node.number for node in nodes]


def socket(topology: Topology, home: int | None, allowed: CpuSet) -> Domain:
    """Return the home node's cores, then those of its packages' other nodes, the nearest first."""
    packages = {core.package for core in topology.node_cores[home]}
    cores = (
        core
        for number in nearest_first(topology, home)
        for core in topology.node_cores[number]
        if core.package in packages
    )
    return single_bundles(usable(cores, allowed))


def _with_partners(
    topology: Topology, homes: Collection[int | None], allowed: CpuSet
) -> dict[int | None, Domain]:
    """Return each home node's near cores with their partners, by home node.

    In each package the cores that are near to no home node are dealt round-robin, in core order,
    to the near ones.
    """
    cores = usable(topology.cores, allowed)
    bundles = deal(
        [core for core in cores if core.node in homes],
        [core for core in cores if core.node not in homes],
    )
    return {home: tuple(bundle for bundle in bundles if bundle[0].node == home) for home in homes}


def deal(near_cores: Iterable[Core], partners: Sequence[Core]) -> Domain:
    """Deal partners round-robin to the near cores of their package."""
    bundles = [[core] for core in near_cores]
    next_of_package = {
        package: cycle([bundle for bundle in bundles if bundle[0].package == package])
        for package in {bundle[0].package for bundle in bundles}
    }
    for core in partners:
        if core.package in next_of_package:
            next(next_of_package[core.package]).append(core)
    return tuple(tuple(bundle) for bundle in bundles)


def best_first(bundles: Iterable[Bundle]) -> tuple[Core, ...]:
    """Return a rank's cores: the near ones, then the partners, in dealing order."""
    return tuple(core for dealt in zip_longest(*bundles) for core in dealt if core is not None)


def restrict(domain: Domain, allowed: CpuSet) -> Domain:
    """Return the part of a domain in a narrower cpuset; its remaining partners are dealt again."""
    if all(allowed.issuperset(core.cpus) for bundle in domain for core in bundle):
        return domain
    near_cores = usable((bundle[0] for bundle in domain), allowed)
    partners = usable(best_first(bundle[1:] for bundle in domain), allowed)
    return deal(near_cores, partners)


def single_bundles(cores: Iterable[Core]) -> Domain:
    """Return a domain whose cores bring no partners."""
    return tuple((core,) for core in cores)


def grouped(keys: Iterable[K]) -> dict[K, tuple[int, ...]]:
    """Return the positions of each key, keys in order of first appearance."""
    positions: dict[K, list[int]] = {}
    for position, key in enumerate(keys):
        positions.setdefault(key, []).append(position)
    return {key: tuple(its) for key, its in positions.items()}
