"""Never fewer CPUs than were asked for: where near cores are too few, the nearest others come in.

Pure, as all of the planner. A rank asks for CPUs by the option `cpus`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from affinityd.cpuset import CpuSet
from affinityd.domains import Group, single_bundles
from affinityd.placement import usable
from affinityd.plans import Options
from affinityd.topology import Core, Topology

Hands = Mapping[int, tuple[Core, ...]]  #: each rank's cores, best first


def given_cpus(cores: Iterable[Core], options: Options) -> CpuSet:
    """Return the CPUs that a rank with these cores is given."""
    wanted = slice(1) if options.multithreading == "single_logical" else slice(None)
    return frozenset(cpu for core in cores for cpu in core.cpus[wanted])


def suffices(hands: Hands, options: Options, *, asked: int) -> bool:
    """Return whether every rank is given as many CPUs as it asked for."""
    return all(len(given_cpus(cores, options)) >= asked for cores in hands.values())


def widened(
    topology: Topology, groups: Sequence[Group], allowed: CpuSet, options: Options, *, asked: int
) -> tuple[Group, ...]:
    """Return the groups, whose domains hold the CPUs that their ranks asked for.

    What a domain lacks are the nearest allowed cores that are in no other group's domain, behind
    its own, until it holds enough or none are left.
    """
    taken = {core for group in groups for core in chain(*group.domain)}
    spare = [core for core in usable(topology.cores, allowed) if core not in taken]
    wider = []
    for group in groups:
        has = len(given_cpus(chain(*group.domain), options))
        further = _first(topology, group.home, spare, options, asked * len(group.ranks) - has)
        spare = [core for core in spare if core not in further]
        wider.append(replace(group, domain=(*group.domain, *single_bundles(further))))
    return tuple(wider)


def topped_up(
    topology: Topology,
    groups: Sequence[Group],
    hands: Hands,
    allowed: CpuSet,
    options: Options,
    *,
    asked: int,
) -> Hands:
    """Return the hands of a unique mode, where no rank lacks CPUs while allowed ones are idle.

    A division leaves cores idle that one rank lacks: cores are not cut in two, and no group takes
    what is in another's domain.
    """
    held = set(chain(*hands.values()))
    idle = [core for core in usable(topology.cores, allowed) if core not in held]
    home = {rank: group.home for group in groups for rank in group.ranks}
    fuller = {}
    for rank, cores in sorted(hands.items()):
        lack = asked - len(given_cpus(cores, options))
        further = _first(topology, home[rank], idle, options, lack)
        idle = [core for core in idle if core not in further]
        fuller[rank] = (*cores, *further)
    return fuller


def _first(
    topology: Topology, home: int | None, cores: Sequence[Core], options: Options, lack: int
) -> tuple[Core, ...]:
    """Return the cores nearest to a home node that together give so many CPUs, or all of them."""
    if lack <= 0:
        return ()
    ranked = sorted(cores, key=lambda core: _farness(topology, home, core.node))
    enough = 0
    while enough < len(ranked) and lack > 0:
        lack -= len(given_cpus(ranked[enough : enough + 1], options))
        enough += 1
    return tuple(ranked[:enough])


def _farness(
    topology: Topology, home: int | None, node: int | None
) -> tuple[bool, float, tuple[bool, int]]:
    """Rank a node's cores by the home node's distances, then by the node's number."""
    return node != home, topology.distance(home, node), topology.node_of[node].order
