"""share=node: every GPU of the machine has a block of cores of its own.

The blocks depend on the machine and its reserved CPUs alone, so jobs that know nothing of each
other do not overlap.
"""

from __future__ import annotations

from collections.abc import Mapping

from affinityd.cpuset import CpuSet
from affinityd.planner.domains import Domain, near, restrict, with_partners
from affinityd.planner.home_nodes import home_nodes
from affinityd.planner.modes import Position, blocks
from affinityd.topology.model import Gpu, Topology


def gpu_blocks(
    topology: Topology, unreserved: CpuSet, allowed: CpuSet, *, scope: str, balanced: bool
) -> Mapping[tuple[str, int], Domain]:
    """Return each GPU's block, as far as `allowed` leaves it, by its key.

    `unreserved` is online less the reserved CPUs. A GPU is missing if its node has fewer allowed
    cores than GPUs.
    """
    homes = home_nodes(topology, topology.gpus, unreserved)
    gpus_of: dict[int | None, list[Gpu]] = {}
    for gpu, home in zip(topology.gpus, homes, strict=True):
        gpus_of.setdefault(home, []).append(gpu)
    domains = (
        with_partners(topology, gpus_of, unreserved)
        if scope == "socket"
        else {home: near(topology, home, unreserved) for home in gpus_of}
    )
    cuts = {home: _cut(domains[home], len(gpus)) for home, gpus in gpus_of.items()}
    smallest = min(len(block) for cut in cuts.values() for block in cut)
    # A node with fewer cores than GPUs has empty blocks: they are no measure for the others.
    keep = smallest or None if balanced else None
    return {
        gpu.key: block
        for home, gpus in gpus_of.items()
        for gpu, block in zip(
            gpus, _allowed(cuts[home], domains[home], allowed, keep), strict=False
        )
    }


def _cut(domain: Domain, pieces: int) -> list[Domain]:
    return [blocks(domain, Position(index, pieces, 0, balanced=False)) for index in range(pieces)]


def _allowed(cut: list[Domain], domain: Domain, allowed: CpuSet, keep: int | None) -> list[Domain]:
    """Return what a node's GPUs may use of their blocks, each block's first `keep` cores.

    If one may use none of its block, the node is cut anew; with too few cores for that, nothing.
    That must not depend on `keep`: jobs that differ in `balanced` are to find the same blocks.
    """
    if all(restrict(block, allowed) for block in cut):
        return [restrict(b[:keep], allowed) or restrict(b, allowed)[:keep] for b in cut]
    again = restrict(domain, allowed)
    return _cut(again, len(cut)) if len(again) >= len(cut) else []
