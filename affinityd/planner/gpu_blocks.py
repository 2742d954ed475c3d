"""share=node: every GPU of the machine has a block of cores of its own.

The blocks depend on the machine and its reserved CPUs alone, so unrelated jobs do not
overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from affinityd.cpuset import CpuSet
from affinityd.planner.domains import Domain, domains_of, grouped, home_nodes, restrict
from affinityd.planner.model import Demand
from affinityd.planner.modes import PlanMode, Position, blocks
from affinityd.topology.derived import derived
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
    options = demand.options
    of_nodes = _of_nodes(topology, mode.scope or options.scope, demand.unreserved)
    smallest = min(len(block) for node in of_nodes for block in node.blocks)
    # A node with fewer cores than GPUs has empty blocks, which do not count for the others.
    keep = smallest or None if mode.balances and options.balanced else None
    found: dict[tuple[str, int], Domain] = {}
    allowed = None if demand.allowed == demand.unreserved else demand.allowed
    for node in of_nodes:
        found.update(zip(node.gpus, _allowed(node, allowed, keep), strict=False))
    return found


@dataclass(frozen=True)
class NodeBlocks:
    """A node's domain, and the block of each GPU whose home it is."""

    gpus: tuple[tuple[str, int], ...]  #: their keys
    domain: Domain
    blocks: tuple[Domain, ...]


def _of_nodes(topology: Topology, scope: str, unreserved: CpuSet) -> tuple[NodeBlocks, ...]:
    """Return the blocks of every node, found once for all jobs."""
    known, question = _known(topology), (scope, unreserved)
    if question not in known:
        gpus_at = grouped(home_nodes(topology, topology.gpus, unreserved))
        domains = domains_of(topology, gpus_at, unreserved, scope=scope, unique=True)
        known[question] = tuple(
            NodeBlocks(
                tuple(topology.gpus[place].key for place in places),
                domains[home],
                _cut(domains[home], len(places)),
            )
            for home, places in gpus_at.items()
        )
    return known[question]


@derived
def _known(_topology: Topology) -> dict[tuple[str, CpuSet], tuple[NodeBlocks, ...]]:
    """Return the blocks found so far, by scope and reservation; `_of_nodes` adds to them."""
    return {}


def _cut(domain: Domain, pieces: int) -> tuple[Domain, ...]:
    return tuple(
        blocks(domain, Position(index, pieces, 0, balanced=False)) for index in range(pieces)
    )


def _allowed(node: NodeBlocks, allowed: CpuSet | None, keep: int | None) -> Sequence[Domain]:
    """Return the cores that a node's GPUs may use: each block's first `keep` cores.

    If one may use none of its block, the node is divided again; with too few cores, nothing.
    The blocks must not depend on `keep`: jobs that differ in `balanced` must find the same ones.
    """
    cut = node.blocks
    if allowed is None:
        return [block[:keep] for block in cut] if all(cut) else ()
    if all(restrict(block, allowed) for block in cut):
        return [restrict(b[:keep], allowed) or restrict(b, allowed)[:keep] for b in cut]
    again = restrict(node.domain, allowed)
    return _cut(again, len(cut)) if len(again) >= len(cut) else ()
