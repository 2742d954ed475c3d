"""share=node: every GPU of the machine has a block of cores of its own.

The blocks depend on the machine and its reserved CPUs alone, so unrelated jobs do not
overlap.
"""

from __future__ import annotations

from collections.abc import Mapping

from affinityd.cpuset import CpuSet
from affinityd.planner.domains import Domain, domains_of, grouped, home_nodes, restrict
from affinityd.planner.model import Demand
from affinityd.planner.modes import PlanMode, Position, blocks
from affinityd.topology.model import Topology


def shares_node(demand: Demand, mode: PlanMode) -> bool:
    """Return whether a plan must keep to the blocks."""
    share, is_unconfined = demand.options.share, demand.allowed == demand.unreserved
    return mode.shares_node and (share == "node" or (share == "auto" and is_unconfined))


def gpu_blocks(
    topology: Topology, demand: Demand, mode: PlanMode
) -> Mapping[tuple[str, int], Domain]:
    """Return each GPU's block, within the demand's allowed CPUs, by its key.

    A GPU is missing if its node has fewer allowed cores than GPUs.
    """
    options, gpus = demand.options, topology.gpus
    gpus_at = grouped(home_nodes(topology, gpus, demand.unreserved))
    scope = mode.scope or options.scope
    domains = domains_of(topology, gpus_at, demand.unreserved, scope=scope, unique=True)
    cuts = {home: _cut(domains[home], len(places)) for home, places in gpus_at.items()}
    smallest = min(len(block) for cut in cuts.values() for block in cut)
    # A node with fewer cores than GPUs has empty blocks, which do not count for the others.
    keep = smallest or None if mode.balances and options.balanced else None
    found: dict[tuple[str, int], Domain] = {}
    for home, places in gpus_at.items():
        keys = (gpus[place].key for place in places)
        blocks_left = _allowed(cuts[home], domains[home], demand.allowed, keep)
        found.update(zip(keys, blocks_left, strict=False))
    return found


def _cut(domain: Domain, pieces: int) -> list[Domain]:
    return [blocks(domain, Position(index, pieces, 0, balanced=False)) for index in range(pieces)]


def _allowed(cut: list[Domain], domain: Domain, allowed: CpuSet, keep: int | None) -> list[Domain]:
    """Return the cores that a node's GPUs may use: each block's first `keep` cores.

    If one may use none of its block, the node is divided again; with too few cores, nothing.
    The blocks must not depend on `keep`: jobs that differ in `balanced` must find the same ones.
    """
    if all(restrict(block, allowed) for block in cut):
        return [restrict(b[:keep], allowed) or restrict(b, allowed)[:keep] for b in cut]
    again = restrict(domain, allowed)
    return _cut(again, len(cut)) if len(again) >= len(cut) else []
