"""Domains: which cores the ranks of one home node may be given, in the order of giving.

A domain is a sequence of bundles. A bundle is dealt as one: a near core, and after it its
partners (cores of the same package that are near to no planned rank).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, zip_longest

from affinityd.cpuset import CpuSet
from affinityd.planner.home_nodes import usable
from affinityd.topology.model import Core, Topology

Bundle = tuple[Core, ...]
Domain = tuple[Bundle, ...]


@dataclass(frozen=True)
class RankGroup:
    """Ranks that divide one domain, in request order."""

    ranks: tuple[int, ...]
    domain: Domain
    home: int | None  #: the home node of all of them; None also where the domain is everywhere


def everywhere(topology: Topology, allowed: CpuSet) -> Domain:
    """Return every allowed core, wherever it is."""
    return single_bundles(usable(topology.cores, allowed))


def near(topology: Topology, home: int | None, allowed: CpuSet) -> Domain:
    """Return the allowed cores of the home node."""
    return single_bundles(usable(topology.node_cores[home], allowed))


def socket(topology: Topology, home: int | None, allowed: CpuSet) -> Domain:
    """Return the home node's cores, then those of its packages' other nodes, the nearest first."""
    packages = {core.package for core in topology.node_cores[home]}
    others = sorted(
        (node for node in topology.nodes if node.number != home),
        key=lambda node: (topology.distance(home, node.number), node.order),
    )
    neighbours = (
        core
        for node in others
        for core in topology.node_cores[node.number]
        if core.package in packages
    )
    return single_bundles(usable(chain(topology.node_cores[home], neighbours), allowed))


def with_partners(
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
    """Return a rank's cores: the near ones, then the partners, dealt round by dealt round."""
    return tuple(core for dealt in zip_longest(*bundles) for core in dealt if core is not None)


def restrict(domain: Domain, allowed: CpuSet) -> Domain:
    """Return what a narrower cpuset leaves of a domain; the partners it leaves are dealt anew."""
    near_cores = usable((bundle[0] for bundle in domain), allowed)
    partners = usable(best_first(bundle[1:] for bundle in domain), allowed)
    return deal(near_cores, partners)


def single_bundles(cores: Iterable[Core]) -> Domain:
    """Return a domain whose cores bring no partners."""
    return tuple((core,) for core in cores)
