"""Never fewer CPUs than were asked for: where near cores are too few, the nearest others come in.

Pure, as all of the planner. A rank asks for CPUs by the option `cpus`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from affinityd.cpuset import CpuSet
from affinityd.planner.domains import RankGroup, single_bundles
from affinityd.planner.home_nodes import usable
from affinityd.planner.model import Options
from affinityd.topology.model import Core, Topology

RankCores = Mapping[int, tuple[Core, ...]]  #: each rank's cores, best first


def given_cpus(cores: Iterable[Core], options: Options) -> CpuSet:
    """Return the CPUs that a rank with these cores is given."""
    wanted = slice(1) if options.multithreading == "single_logical" else slice(None)
    return frozenset(cpu for core in cores for cpu in core.cpus[wanted])


def suffices(cores_of: RankCores, options: Options, *, asked: int) -> bool:
    """Return whether every rank is given as many CPUs as it asked for."""
    return all(len(given_cpus(cores, options)) >= asked for cores in cores_of.values())


def widened(
    topology: Topology,
    groups: Sequence[RankGroup],
    allowed: CpuSet,
    options: Options,
    *,
    asked: int,
    divides: bool,
) -> tuple[RankGroup, ...]:
    """Return the groups, whose domains hold the CPUs that their ranks asked for.

    What a domain lacks are the nearest allowed cores that are in no other group's domain, behind
    its own, until it holds enough or none are left. Where ranks divide a domain that has a core for
    each, it stays as it is: what is added behind its end would leave the last ranks no near core.
    """
    spare = _FreeCores(topology, allowed, (core for it in groups for core in chain(*it.domain)))
    wider = []
    for group in groups:
        has = len(given_cpus(chain(*group.domain), options))
        is_short = not divides or len(group.domain) < len(group.ranks)
        lack = asked * len(group.ranks) - has if is_short else 0
        further = spare.take(group.home, lack, options)
        wider.append(replace(group, domain=(*group.domain, *single_bundles(further))))
    return tuple(wider)


def topped_up(
    topology: Topology,
    groups: Sequence[RankGroup],
    cores_of: RankCores,
    allowed: CpuSet,
    options: Options,
    *,
    asked: int,
) -> RankCores:
    """Return the cores of a unique mode, where no rank lacks CPUs while allowed ones are idle.

    A division leaves cores idle that one rank lacks: cores are not cut in two, and no group takes
    what is in another's domain.
    """
    idle = _FreeCores(topology, allowed, chain(*cores_of.values()))
    home = {rank: group.home for group in groups for rank in group.ranks}
    return {
        rank: (*cores, *idle.take(home[rank], asked - len(given_cpus(cores, options)), options))
        for rank, cores in sorted(cores_of.items())
    }


class _FreeCores:
    """Allowed cores that no rank has yet, by how near they are to a home node."""

    def __init__(self, topology: Topology, allowed: CpuSet, taken: Iterable[Core]) -> None:
        self._topology = topology
        self._taken = {core.cpus[0] for core in taken}
        self._allowed = usable(topology.cores, allowed)
        self._ranked: dict[int | None, Iterator[Core]] = {}

    def take(self, home: int | None, lack: int, options: Options) -> tuple[Core, ...]:
        """Take the nearest cores that together give so many CPUs, or all that are left."""
        found = []
        while lack > 0 and (core := next(self._nearest(home), None)) is not None:
            if core.cpus[0] not in self._taken:
                self._taken.add(core.cpus[0])
                found.append(core)
                lack -= len(given_cpus((core,), options))
        return tuple(found)

    def _nearest(self, home: int | None) -> Iterator[Core]:
        """Return the cores that were not looked at for this home node: each is looked at once."""
        if home not in self._ranked:
            farness = {node: self._farness(home, node) for node in self._topology.node_of}
            cores = sorted(self._allowed, key=lambda core: farness[core.node])
            self._ranked[home] = iter(cores)
        return self._ranked[home]

    def _farness(self, home: int | None, node: int | None) -> tuple[bool, float, tuple[bool, int]]:
        """Rank a node's cores by the home node's distances, then by the node's number."""
        order = self._topology.node_of[node].order
        return node != home, self._topology.distance(home, node), order
