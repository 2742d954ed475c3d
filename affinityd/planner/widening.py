"""Never fewer CPUs than requested: if near cores are too few, the nearest others are added."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from affinityd.cpuset import CpuSet
from affinityd.planner.domains import RankGroup, nearest_first, single_bundles, usable
from affinityd.planner.model import Demand, Options
from affinityd.topology.model import Core, Topology

if TYPE_CHECKING:
    RankCores = Mapping[int, tuple[Core, ...]]  #: each rank's cores, best first


def given_cpus(cores: Iterable[Core], options: Options) -> CpuSet:
    """Return the CPUs that a rank with these cores is given."""
    if options.multithreading == "single_logical":
        return frozenset(core.cpus[0] for core in cores)
    return frozenset(chain.from_iterable([core.cpus for core in cores]))


def widened(
    topology: Topology, demand: Demand, groups: Sequence[RankGroup], *, asked: int, divides: bool
) -> tuple[RankGroup, ...]:
    """Return the groups, whose domains hold the CPUs that their ranks asked for, `asked` each.

    A domain is filled with the nearest allowed cores that are in no other group's domain, behind
    its own, until it holds enough or none are left. A domain with a core for each of
    its ranks stays as it is: cores added behind its end would leave the last ranks no near core.
    """
    free = _free_cores(topology, demand, (core for it in groups for core in chain(*it.domain)))
    wider = []
    for group in groups:
        has = len(given_cpus(chain(*group.domain), demand.options))
        is_short = not divides or len(group.domain) < len(group.ranks)
        lack = asked_together(demand, group, asked) - has if is_short else 0
        further = _take(free, topology, group.home, lack, demand.options)
        wider.append(replace(group, domain=(*group.domain, *single_bundles(further))))
    return tuple(wider)


def asked_together(demand: Demand, group: RankGroup, asked: int) -> int:
    """Return how many logical CPUs the ranks of a group ask for, `asked` each if none says it."""
    return demand.together.get(group.home, asked * len(group.ranks))


def topped_up(
    topology: Topology,
    demand: Demand,
    groups: Sequence[RankGroup],
    cores_of: RankCores,
    *,
    asked: int,
) -> RankCores:
    """Return the cores of a unique mode, where no rank lacks CPUs while allowed ones are idle.

    A division leaves cores idle that one rank lacks: cores are not cut in two, and no group takes
    cores of another's domain.
    """
    free = _free_cores(topology, demand, chain(*cores_of.values()))
    home = {rank: group.home for group in groups for rank in group.ranks}
    full = {}
    for rank, cores in sorted(cores_of.items()):
        lack = asked - len(given_cpus(cores, demand.options))
        full[rank] = (*cores, *_take(free, topology, home[rank], lack, demand.options))
    return full


def _free_cores(topology: Topology, demand: Demand, taken: Iterable[Core]) -> list[Core]:
    """Return the allowed cores that no rank has yet."""
    those = {core.cpus[0] for core in taken}
    return [core for core in usable(topology.cores, demand.allowed) if core.cpus[0] not in those]


def _take(
    free: list[Core], topology: Topology, home: int | None, lack: int, options: Options
) -> tuple[Core, ...]:
    """Take the free cores nearest to a node, until they have so many CPUs, or all."""
    if lack <= 0:
        return ()
    order = nearest_first(topology, home)
    free.sort(key=lambda core: order.index(core.node))
    found = []
    while lack > 0 and free:
        found.append(free.pop(0))
        lack -= len(given_cpus(found[-1:], options))
    return tuple(found)
