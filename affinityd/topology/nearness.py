"""The CPUs and memory near GPUs, the placement of masks, and why some are far. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from affinityd.cpuset import CpuSet, several
from affinityd.text import count
from affinityd.topology.model import Gpu, Topology

LOCAL = "local"  #: may run only near its GPUs
MIXED = "mixed"  #: near and far
REMOTE = "remote"  #: only far from them
UNPINNED = "unpinned"  #: on every online CPU, and some of them are far
UNKNOWN = "unknown"  #: the NUMA nodes of its GPUs are unknown
PLACEMENTS = (LOCAL, MIXED, REMOTE, UNPINNED, UNKNOWN)
FAR = (MIXED, REMOTE, UNPINNED)  #: placements of a thread that may run far from its GPUs

#: Why a process may run far from its GPUs, besides UNPINNED.
ALLOCATION = "allocation"  #: its cpuset has no near CPU, or fewer than its job asked for
MASK = "mask"  #: its cpuset has near CPUs, and its mask others
CAUSES = (ALLOCATION, MASK, UNPINNED)


@dataclass(frozen=True)
class Vicinity:
    """The CPUs and memory near GPUs: near any of them."""

    gpus: tuple[Gpu, ...]
    nodes: tuple[int | None, ...]  #: the NUMA nodes of the near CPUs; (): unknown
    cpus: CpuSet
    memory: frozenset[int]  #: the nodes whose memory is near
    far_memory: frozenset[int]  #: nodes with memory near to other CPUs

    def __str__(self) -> str:
        """Return the GPUs' places: `GPU 0 is on node 3`."""
        unknown = tuple(gpu for gpu in self.gpus if gpu.numa_node is None)
        gpus = unknown or self.gpus
        names, verb = several("GPU", (gpu.index for gpu in gpus)), "is" if len(gpus) == 1 else "are"
        on = {gpu.numa_node for gpu in gpus if gpu.numa_node is not None}
        return f"{names} {verb} on {several('node', on) if on else 'an unknown node'}"

    def part_of(self, cpuset: CpuSet | None) -> str:
        """Return how many near CPUs a cpuset has that has too few of them."""
        there = len((cpuset or frozenset()) & self.cpus)
        return f"only {count(there, 'CPU')}" if there else "no CPU"


def vicinity(
    topology: Topology, gpus: Sequence[Gpu], memory_nodes: Iterable[int | None] = ()
) -> Vicinity:
    """Return the vicinity of GPUs; memory of `memory_nodes` counts as near too.

    Near is the GPU's own node, or the nearest ones that have CPUs, even if a process may not use
    them. If the node of a GPU is unknown, so is the vicinity, unless all CPUs are in one node.
    """
    nodes = with_cpus = topology.nodes_with_cpus
    if len(with_cpus) > 1:
        near = {node for gpu in gpus for node in topology.nearest(gpu.numa_node, with_cpus)}
        is_known = all(gpu.numa_node is not None for gpu in gpus)
        nodes = tuple(node for node in with_cpus if node in near and is_known)
    homes = set(memory_nodes).union(*map(topology.memory_nodes, nodes))
    memory = frozenset(node for node in homes if node is not None)
    others = frozenset(node for node in with_cpus if node is not None) - memory
    return Vicinity(
        tuple(gpus),
        nodes,
        cpus=frozenset().union(*map(topology.cpus_of_node, nodes)),
        memory=memory,
        far_memory=others if nodes else frozenset(),
    )


def placement(topology: Topology, near: Vicinity, mask: CpuSet) -> str:
    """Return the placement of a mask relative to the GPUs: one of PLACEMENTS."""
    if not near.nodes:
        return UNKNOWN
    if mask <= near.cpus or len(near.nodes) == len(topology.nodes_with_cpus):
        return LOCAL
    if mask >= topology.online:
        return UNPINNED
    return REMOTE if mask.isdisjoint(near.cpus) else MIXED


def cause_of(
    placements: Mapping[CpuSet, str],
    near: CpuSet,
    cpuset: CpuSet | None,
    widened: CpuSet | None = None,
) -> str | None:
    """Return why masks are far, the first of CAUSES that fits; None: none is far.

    The process may use `cpuset`; `widened` are the CPUs, near and far, that it was given because
    it asked for more than are near; None: unknown, or it was not.
    """
    far = [mask for mask, word in placements.items() if word in FAR]
    causes = (
        (None, not far),
        (ALLOCATION, cpuset is not None and cpuset.isdisjoint(near)),
        (ALLOCATION, widened is not None and all(mask <= widened for mask in far)),
        (UNPINNED, UNPINNED in placements.values()),
        (MASK, True),
    )
    return next(cause for cause, fits in causes if fits)
