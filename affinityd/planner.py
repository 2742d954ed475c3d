"""The planner: which CPUs each rank is to have. Pure: no files, no clock, no surprises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from affinityd import explain
from affinityd.cpuset import CpuSet, format_list
from affinityd.domains import Domain, everywhere, near, rounds, socket, with_partners
from affinityd.errors import UnsatisfiableError
from affinityd.modes import MODES, Mode, Turn
from affinityd.placement import home_nodes, locality
from affinityd.plans import Demand, Options, Plan, RankPlan
from affinityd.sharing import gpu_blocks
from affinityd.topology import Core, Topology
from affinityd.warn import warnings

K = TypeVar("K")


@dataclass(frozen=True)
class Group:
    """Ranks that divide one domain, in request order."""

    ranks: tuple[int, ...]
    domain: Domain


def plan(topology: Topology, demand: Demand) -> Plan:
    """Return the CPUs of every rank of a demand.

    Raises UnsatisfiableError where a rank would have too few cores, or a remote home node that
    the options forbid.
    """
    if not demand.allowed:
        raise UnsatisfiableError(
            "no CPU is allowed: the cpuset holds none of the CPUs that this machine can give "
            f"({format_list(demand.whole) or 'all are reserved'})"
        )
    mode = MODES[demand.options.mode]
    by_gpu = _by_gpu(topology, demand, mode) if _shares_node(demand, mode) else ()
    groups = by_gpu or _by_home(topology, demand, mode)
    hands = dict(_split(groups, demand.options, mode))
    share = "node" if by_gpu else "requested"
    ranks = tuple(_rank_plans(topology, demand, mode, hands, share=share))
    if demand.options.strict:
        _refuse_remote(ranks)
    return Plan(ranks, share, tuple(warnings(demand, mode, ranks, share)))


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
    return tuple(Group(ranks, blocks[gpu]) for gpu, ranks in ranks_of.items())


def _by_home(topology: Topology, demand: Demand, mode: Mode) -> tuple[Group, ...]:
    """Group ranks by home node, each group on the domain that mode and scope say."""
    allowed = demand.allowed
    if mode.everywhere:
        return (Group(tuple(range(len(demand.gpus))), everywhere(topology, allowed)),)
    ranks_at = _grouped(home_nodes(topology, demand.gpus, allowed))
    if (mode.scope or demand.options.scope) == "node":
        domains = {home: near(topology, home, allowed) for home in ranks_at}
    elif mode.unique:
        domains = with_partners(topology, ranks_at, allowed)
    else:
        domains = {home: socket(topology, home, allowed) for home in ranks_at}
    return tuple(Group(ranks, domains[home]) for home, ranks in ranks_at.items())


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
    topology: Topology,
    demand: Demand,
    mode: Mode,
    hands: Mapping[int, tuple[Core, ...]],
    *,
    share: str,
) -> Iterator[RankPlan]:
    options = demand.options
    least = options.min_physical_cores if mode.counts else 1
    most = options.max_physical_cores if mode.counts else None
    cut = {rank: cores[:most] for rank, cores in sorted(hands.items())}
    holders = Counter(core.cpus[0] for cores in cut.values() for core in cores)
    reasons = explain.Reasons(topology, demand, mode, hands, share=share)
    for rank, cores in cut.items():
        if len(hands[rank]) < least:
            raise UnsatisfiableError(explain.too_few(demand, rank, hands, least))
        gpu, home = demand.gpus[rank], cores[0].node
        nodes = {core.node for core in cores} if mode.everywhere else {home}
        yield RankPlan(
            rank=rank,
            gpu=gpu,
            cpus=_cpus(cores, options),
            physical_cores=len(cores),
            home_node=home,
            locality=locality(topology, gpu, nodes),
            memory_node=topology.memory_node(home),
            threads=max(1, len(cores) // max(holders[core.cpus[0]] for core in cores)),
            reasons=tuple(reasons.of(rank)),
        )


def _cpus(cores: Iterable[Core], options: Options) -> CpuSet:
    wanted = slice(1) if options.multithreading == "single_logical" else slice(None)
    return frozenset(cpu for core in cores for cpu in core.cpus[wanted])


def _refuse_remote(ranks: Iterable[RankPlan]) -> None:
    for rank in ranks:
        if rank.locality == "remote":
            raise UnsatisfiableError(f"strict: {explain.away(rank)}; strict=false would allow it")


def _grouped(keys: Iterable[K]) -> dict[K, tuple[int, ...]]:
    """Return the positions of each key, keys in order of first appearance."""
    positions: dict[K, tuple[int, ...]] = {}
    for position, key in enumerate(keys):
        positions[key] = (*positions.get(key, ()), position)
    return positions
