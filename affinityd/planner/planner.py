"""The planner: which CPUs each rank is to have. Pure: no files, no clock, no surprises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from affinityd.cpuset import format_list
from affinityd.errors import UnsatisfiableError
from affinityd.planner import reasons as explain
from affinityd.planner.domains import Group, everywhere, near, rounds, socket, with_partners
from affinityd.planner.gpu_blocks import gpu_blocks
from affinityd.planner.home_nodes import home_nodes, locality
from affinityd.planner.model import Demand, Options, Plan, RankPlan, Widening
from affinityd.planner.modes import MODES, Mode, Turn
from affinityd.planner.warnings import warnings
from affinityd.planner.widening import Hands, given_cpus, suffices, topped_up, widened
from affinityd.topology.model import Core, Topology

K = TypeVar("K")


@dataclass(frozen=True)
class Division:
    """The cores of every rank, and the groups that were divided."""

    groups: tuple[Group, ...]  #: with their own domains, before others' cores came in
    hands: Hands
    share: str  #: who divided the cores: "requested" or "node"


def plan(topology: Topology, demand: Demand) -> Plan:
    """Return the CPUs of every rank of a demand.

    Raises UnsatisfiableError where a rank would have too few cores, or CPUs away from its GPU that
    the options forbid.
    """
    if not demand.allowed:
        raise UnsatisfiableError(
            "no CPU is allowed: the cpuset holds none of the CPUs that this machine can give "
            f"({format_list(demand.whole) or 'all are reserved'})"
        )
    mode = MODES[demand.options.mode]
    division = _divided(topology, demand, mode)
    ranks = tuple(_rank_plans(topology, demand, mode, division))
    if demand.options.strict:
        _refuse_far(ranks)
    said = tuple(warnings(topology, demand, mode, ranks, division.share))
    return Plan(ranks, division.share, said)


def _divided(topology: Topology, demand: Demand, mode: Mode) -> Division:
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
    hands: Hands = dict(_split(wider, options, mode))
    if asked and mode.unique:
        hands = topped_up(topology, groups, hands, allowed, options, asked=asked)
    return Division(groups, hands, "requested")


def _shares_node(demand: Demand, mode: Mode) -> bool:
    share = demand.options.share
    unconfined = demand.allowed == demand.whole
    return mode.shares_node and (share == "node" or (share == "auto" and unconfined))


def _by_gpu(topology: Topology, demand: Demand, mode: Mode) -> tuple[Group, ...]:
    """Group ranks by GPU, each on its GPU's own block; nothing if one of them has none."""
    options = demand.options
    blocks = gpu_blocks(
        topology,
        demand.whole,
        demand.allowed,
        scope=mode.scope or options.scope,
        balanced=mode.balances and options.balanced,
    )
    ranks_of = _grouped(gpu.key for gpu in demand.gpus)
    if not ranks_of.keys() <= blocks.keys():
        return ()
    return tuple(
        Group(ranks, blocks[gpu], blocks[gpu][0][0].node) for gpu, ranks in ranks_of.items()
    )


def _by_home(topology: Topology, demand: Demand, mode: Mode) -> tuple[Group, ...]:
    """Group ranks by home node, each group on the domain that mode and scope say."""
    allowed = demand.allowed
    if mode.everywhere:
        return (Group(tuple(range(len(demand.gpus))), everywhere(topology, allowed), None),)
    ranks_at = _grouped(home_nodes(topology, demand.gpus, allowed))
    if (mode.scope or demand.options.scope) == "node":
        domains = {home: near(topology, home, allowed) for home in ranks_at}
    elif mode.unique:
        domains = with_partners(topology, ranks_at, allowed)
    else:
        domains = {home: socket(topology, home, allowed) for home in ranks_at}
    return tuple(Group(ranks, domains[home], home) for home, ranks in ranks_at.items())


def _split(
    groups: Sequence[Group], options: Options, mode: Mode
) -> Iterator[tuple[int, tuple[Core, ...]]]:
    """Yield (rank, its cores, best first) of every rank."""
    balanced = mode.balances and options.balanced
    even_hand = min(len(group.domain) // len(group.ranks) for group in groups)
    for group in groups:
        n = len(group.ranks)
        q = even_hand if balanced else len(group.domain) // n
        for k, rank in enumerate(group.ranks):
            yield rank, rounds(mode.split(group.domain, Turn(k, n, q, balanced=balanced)))


def _rank_plans(
    topology: Topology, demand: Demand, mode: Mode, division: Division
) -> Iterator[RankPlan]:
    options = demand.options
    least = options.min_physical_cores if mode.counts else 1
    most = options.max_physical_cores if mode.counts else None
    hands = division.hands
    cut = {rank: cores[:most] for rank, cores in sorted(hands.items())}
    holders = Counter(core.cpus[0] for cores in cut.values() for core in cores)
    reasons = explain.Reasons(topology, demand, mode, hands, share=division.share)
    group_of = {rank: group for group in division.groups for rank in group.ranks}
    for rank, cores in cut.items():
        if len(hands[rank]) < least:
            raise UnsatisfiableError(explain.too_few(demand, rank, hands, least))
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
            threads=max(1, len(cores) // max(holders[core.cpus[0]] for core in cores)),
            reasons=tuple(reasons.of(rank, home, widening)),
            widening=widening,
        )


def _widening(group: Group, cores: Iterable[Core], options: Options) -> Widening | None:
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
            line = explain.widened(rank, rank.widening) if rank.widening else explain.away(rank)
            raise UnsatisfiableError(f"strict: {line}; strict=false would allow it")


def _grouped(keys: Iterable[K]) -> dict[K, tuple[int, ...]]:
    """Return the positions of each key, keys in order of first appearance."""
    positions: dict[K, tuple[int, ...]] = {}
    for position, key in enumerate(keys):
        positions[key] = (*positions.get(key, ()), position)
    return positions
