"""Slurm's own numbers of cores: what `Cores=` in gres.conf counts.

Slurm takes hwloc's logical numbers, `Core L#` of `lstopo -l`: it goes down from packages to cores,
and at each step first to what has the lowest CPU. Threads do not count; nor does a core that is
offline as a whole, so that the numbers after it change when it goes. What else Slurm is
configured to take for a socket (SlurmdParameters=l3cache_as_socket, numa_node_as_socket)
changes no number.

Source: Slurm's src/slurmd/common/xcpuinfo.c (xcpuinfo_hwloc_topo_get), gres.conf(5) "Cores".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from affinityd.topology.model import Core, Topology

Part = frozenset[int]  #: some cores, each by its lowest CPU

#: What holds cores, by its name; None where the machine does not say (cores of no known package are
#: one, as their core_siblings are). What crosses a part of an earlier level is none, as in hwloc.
LEVELS: tuple[Callable[[Core], object], ...] = (
    lambda core: (core.package,),
    lambda core: None if core.die is None else (core.package, core.die),
    lambda core: core.node,
    lambda core: (core.node, core.llc),
)


def in_slurms_order(topology: Topology) -> tuple[Core, ...]:
    """Return the cores of a machine: the place of each is its number."""
    parts = _parts(topology)

    def path(core: Core) -> list[int]:
        """Return the lowest CPU of all that the core is in, the widest first, itself last."""
        around = sorted((part for part in parts if core.cpus[0] in part), key=len, reverse=True)
        return [*map(min, around), core.cpus[0]]

    return tuple(sorted(topology.cores, key=path))


def _parts(topology: Topology) -> list[Part]:
    nested: list[Part] = []
    for level in LEVELS:
        found = (
            part for part in _level(topology, level) if not any(_cross(part, it) for it in nested)
        )
        nested.extend(list(found))
    return nested


def _level(topology: Topology, name_of: Callable[[Core], object]) -> Iterator[Part]:
    members: dict[object, set[int]] = {}
    for core in topology.cores:
        members.setdefault(name_of(core), set()).add(core.cpus[0])
    return (frozenset(cores) for name, cores in members.items() if name is not None)


def _cross(one: Part, other: Part) -> bool:
    return not (one <= other or one >= other or one.isdisjoint(other))
