"""The planner: which CPUs each rank is to have. Pure: no files, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from affinityd.cpuset import format_list
from affinityd.errors import UnsatisfiableError
from affinityd.planner import reasons as explain
from affinityd.planner.domains import RankGroup, best_first, everywhere, near, socket, with_partners
from affinityd.planner.gpu_blocks import gpu_blocks
from affinityd.planner.home_nodes import home_nodes, locality
from affinityd.planner.model import Demand, Options, Plan, RankPlan, Widening
from affinityd.planner.modes import MODES, PlanMode, Position
from affinityd.planner.warnings import warnings
from affinityd.planner.widening import RankCores, given_cpus, suffices, topped_up, widened
from affinityd.topology.model import Core, Topology

K = TypeVar("K")


@dataclass(frozen=True)
class Division:
    """The cores of every rank, and the groups that were divided."""

    groups: tuple[RankGroup, ...]  #: with their own domains, before others' cores came in
    cores_of: RankCores
    share: str  #: among which GPUs the cores were divided: "requested" or "node"


def plan(topology: Topology, demand: Demand) -> Plan:
    """Return the CPUs of every rank of a demand.

    Raises UnsatisfiableError where a rank would have too few cores, or CPUs away from its GPU that
    the options forbid.
    """
    if not demand.allowed:
        raise UnsatisfiableError(
            "no CPU is allowed: the cpuset holds none of the CPUs that this machine can give "
            f"({format_list(demand.unreserved) or 'all are reserved'})"
        )
    mode = MODES[demand.options.mode]
    division = _divided(topology, demand, mode)
    ranks = tuple(_rank_plans(topology, demand, mode, division))
    if demand.options.strict:
        _refuse_far(ranks)
    said = tuple(warnings(topology, demand, mode, ranks, division.share))
    return Plan(ranks, division.share, said)


def _divided(topology: Topology, demand: Demand, mode: PlanMode) -> Division:
    options, allowed = demand.options, demand.allowed
    # A mode that does not count cores gives each rank one; more were not asked for in it.
    asked = 0 if options.cpus is None or not mode.widens else options.cpus if mode.counts else 1
    if _shares_node(demand, mode) and (blocks := _by_gpu(topology, demand, mode)):
        in_blocks = dict(_split(blocks, options, mode))
        # Ranks that plan by themselves ask for share=node, and stay apart by their blocks alone.
        if options.share == "node" or suffices(in_blocks, options, asked=asked):
            return Division(blocks, in_blocks, "node")
    groups = _by_home(topology, demand, mode)
    wider = groups
    if asked:
        wider = widened(topology, groups, allowed, options, asked=asked, divides=mode.unique)
    cores_of: RankCores = dict(_split(wider, options, mode))
    if asked and mode.unique:
        cores_of = topped_up(topology, groups, cores_of, allowed, options, asked=asked)
    return Division(groups, cores_of, "requested")


def _shares_node(demand: Demand, mode: PlanMode) -> bool:
    share = demand.options.share
    unconfined = demand.allowed == demand.unreserved
    return mode.shares_node and (share == "node" or (share == "auto" and unconfined))


def _by_gpu(topology: Topology, demand: Demand, mode: PlanMode) -> tuple[RankGroup, ...]:
    """Group ranks by GPU, each on its GPU's own block; nothing if one of them has none."""
    options = demand.options
    blocks = gpu_blocks(
        topology,
        demand.unreserved,
        demand.allowed,
        scope=mode.scope or options.scope,
        balanced=mode.balances and options.balanced,
    )
    ranks_of = _grouped(gpu.key for gpu in demand.gpus)
    if not ranks_of.keys() <= blocks.keys():
        return ()
    return tuple(
        RankGroup(ranks, blocks[gpu], blocks[gpu][0][0].node) for gpu, ranks in ranks_of.items()
    )


def _by_home(topology: Topology, demand: Demand, mode: PlanMode) -> tuple[RankGroup, ...]:
    """Group ranks by home node, each group on the domain that mode and scope say."""
    allowed = demand.allowed
    if mode.everywhere:
        return (RankGroup(tuple(range(len(demand.gpus))), everywhere(topology, allowed), None),)
    ranks_at = _grouped(home_nodes(topology, demand.gpus, allowed))
    if (mode.scope or demand.options.scope) == "node":
        domains = {home: near(topology, home, allowed) for home in ranks_at}
    elif mode.unique:
        domains = with_partners(topology, ranks_at, allowed)
    else:
        domains = {home: socket(topology, home, allowed) for home in ranks_at}
    return tuple(RankGroup(ranks, domains[home], home) for home, ranks in ranks_at.items())


def _split(
    groups: Sequence[RankGroup], options: Options, mode: PlanMode
) -> Iterator[tuple[int, tuple[Core, ...]]]:
    """Yield (rank, its cores, best first) of every rank."""
    balanced = mode.balances and options.balanced
    smallest_quota = min(len(group.domain) // len(group.ranks) for group in groups)
    for group in groups:
        ranks = len(group.ranks)
        quota = smallest_quota if balanced else len(group.domain) // ranks
        for index, rank in enumerate(group.ranks):
            position = Position(index, ranks, quota, balanced=balanced)
            yield rank, best_first(mode.split(group.domain, position))


def _rank_plans(
    topology: Topology, demand: Demand, mode: PlanMode, division: Division
) -> Iterator[RankPlan]:
    options = demand.options
    least = options.min_physical_cores if mode.counts else 1
    most = options.max_physical_cores if mode.counts else None
    cores_of = division.cores_of
    cut = {rank: cores[:most] for rank, cores in sorted(cores_of.items())}
    ranks_on = Counter(core.cpus[0] for cores in cut.values() for core in cores)
    reasons = explain.Reasons(topology, demand, mode, cores_of, share=division.share)
    group_of = {rank: group for group in division.groups for rank in group.ranks}
    for rank, cores in cut.items():
        if len(cores_of[rank]) < least:
            raise UnsatisfiableError(explain.too_few_cores(demand, rank, cores_of, least))
        gpu, group = demand.gpus[rank], group_of[rank]
        home = cores[0].node if mode.everywhere else group.home
        nodes = {core.node for core in cores} if mode.everywhere else {home}
        widening = None if mode.everywhere else _widening(group, cores, options)
        where = locality(topology, gpu, nodes)
        yield RankPlan(
            rank=rank,
            gpu=gpu,
            cpus=given_cpus(cores, options),
            physical_cores=len(cores),
            home_node=home,
            locality="mixed" if widening and where == "local" else where,
            memory_node=topology.memory_node(home),
            threads=max(1, len(cores) // max(ranks_on[core.cpus[0]] for core in cores)),
            reasons=tuple(reasons.of(rank, home, widening)),
            widening=widening,
        )


def _widening(group: RankGroup, cores: Iterable[Core], options: Options) -> Widening | None:
    """Return what a rank has that is not near; None where all of it is."""
    if options.cpus is None:
        return None
    others = [core for core in cores if core.node != group.home]
    if not others:
        return None
    own = {core.cpus[0] for core in chain(*group.domain)}
    further = [core for core in others if core.cpus[0] not in own]
    if not further:
        return None
    near_cpus = len(given_cpus(chain(*group.domain), options))
    return Widening(given_cpus(further, options), near_cpus, options.cpus * len(group.ranks))


def _refuse_far(ranks: Iterable[RankPlan]) -> None:
    for rank in ranks:
        if rank.locality == "remote" or rank.widening:
            line = (
                explain.widened_rank(rank, rank.widening)
                if rank.widening
                else explain.remote_rank(rank)
            )
            raise UnsatisfiableError(f"strict: {line}; strict=false would allow it")


def _grouped(keys: Iterable[K]) -> dict[K, tuple[int, ...]]:
    """Return the positions of each key, keys in order of first appearance."""
    positions: dict[K, tuple[int, ...]] = {}
    for position, key in enumerate(keys):
        positions[key] = (*positions.get(key, ()), position)
    return positions
