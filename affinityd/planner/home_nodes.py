"""Home nodes: on which NUMA node's cores each rank is planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from affinityd.cpuset import CpuSet
from affinityd.topology.model import Core, Gpu, Topology


def usable(cores: Iterable[Core], allowed: CpuSet) -> tuple[Core, ...]:
    """Return the cores that count, in their order, each cut down to its allowed CPUs.

    A core counts if any of its CPUs is allowed.
    """
    return tuple(
        core if allowed.issuperset(core.cpus) else replace(core, cpus=cpus)
        for core in cores
        if (cpus := tuple(cpu for cpu in core.cpus if cpu in allowed))
    )


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
    ranks_at: Counter[int | None] = Counter()
    for rank in sorted(range(len(gpus)), key=lambda rank: len(nearest[rank]) > 1):
        home = min(
            nearest[rank], key=lambda number: (ranks_at[number], topology.node_of[number].order)
        )
        homes[rank] = home
        ranks_at[home] += 1
    return [homes[rank] for rank in range(len(gpus))]


def locality(topology: Topology, gpu: Gpu, nodes: Collection[int | None]) -> str:
    """Return "local", "remote" or "unknown": where nodes are, all of them, seen from a GPU."""
    if len(topology.nodes_with_cpus) == 1:
        return "local"
    if gpu.numa_node is None:
        return "unknown"
    return "local" if all(node == gpu.numa_node for node in nodes) else "remote"
