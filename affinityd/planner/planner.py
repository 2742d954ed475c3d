"""The planner: the CPUs of each rank. Pure: no files, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from affinityd.cpuset import CpuSet, format_list
from affinityd.errors import UnsatisfiableError
from affinityd.planner import Demand, Options, Plan, RankPlan, Widening, domains
from affinityd.planner.domains import RankCores, RankGroup, given_cpus, single_bundles, usable_cores
from affinityd.planner.modes import MODES, PlanMode, Position
from affinityd.planner.reasons import Reasons, too_few_cores, warnings
from affinityd.topology.model import Core, Gpu, Topology
from affinityd.topology.nearness import locality, near_nodes, vicinity

#: The groups, with the domains that they had before more cores were added; the cores of every rank;
#: and which GPUs divided the cores: "requested" or "node".
Division = tuple[tuple[RankGroup, ...], RankCores, str]


def plan(topology: Topology, demand: Demand) -> Plan:
    """Return the CPUs of every rank of a demand.

    Raises UnsatisfiableError if a rank would have too few cores, or forbidden far CPUs.
    """
    if not demand.allowed:
        raise UnsatisfiableError(
            "no CPU is allowed: the cpuset holds none of the CPUs that this machine can give "
            f"({format_list(demand.unreserved) or 'all are reserved'})"
        )
    mode = MODES[demand.options.mode]
    division = _divide_cores(topology, demand, mode)
    ranks = tuple(_rank_plans(topology, demand, mode, division))
    share = division[-1]
    plan_warnings = tuple(warnings(topology, demand, mode, ranks, share))
    if demand.options.strict:
        far = [warning for warning in plan_warnings if warning.code in {"remote_home", "widened"}]
        if far:
            for warning in far:
                if warning.rank == far[0].rank:  # of a rank's two warnings the last counts
                    why = warning.message
            raise UnsatisfiableError(f"strict: {why}; strict=false allows it")
    return Plan(ranks, share, plan_warnings)


def _divide_cores(topology: Topology, demand: Demand, mode: PlanMode) -> Division:
    options = demand.options
    # A mode that does not count cores gives each rank one core; a rank cannot ask for more.
    if options.cpus is None or not mode.widens:
        asked = 0
    elif mode.counts:
        asked = options.cpus
    else:
        asked = 1
    if domains.shares_node(demand, mode):
        blocks = domains.gpu_blocks(topology, demand, mode)
        ranks_of = domains.positions(gpu.key for gpu in demand.gpus)
        if ranks_of.keys() <= blocks.keys():
            block_groups = []
            for gpu, ranks in ranks_of.items():
                first_core = blocks[gpu][0][0]
                block_groups.append(RankGroup(ranks, blocks[gpu], (first_core.node,)))
            in_blocks = dict(_split(block_groups, options, mode))
            # Ranks that plan by themselves request share=node: only blocks keep them apart.
            smallest = min(len(given_cpus(cores, options)) for cores in in_blocks.values())
            if options.share == "node" or smallest >= asked:
                return tuple(block_groups), in_blocks, "node"
    groups = _group_by_home(topology, demand, mode)
    wider = groups
    if asked:
        wider = domains.widen_domains(topology, demand, groups, asked=asked, divides=mode.unique)
    cores_of: RankCores = dict(_split(wider, options, mode))
    if asked and mode.unique:
        cores_of = domains.top_up_cores(topology, demand, groups, cores_of, asked=asked)
    return groups, cores_of, "requested"


def _group_by_home(topology: Topology, demand: Demand, mode: PlanMode) -> tuple[RankGroup, ...]:
    """Group ranks by home nodes, each group on the domain of mode and scope."""
    gpus = demand.gpus
    allowed = demand.allowed
    if mode.everywhere:
        domain = single_bundles(usable_cores(topology.cores, allowed))
        return (RankGroup(tuple(range(len(gpus))), domain, ()),)
    if mode.shares:
        homes_of_ranks = domains.nearest_nodes(topology, gpus, allowed)
    else:
        homes = demand.homes or domains.home_nodes(topology, gpus, allowed)
        homes_of_ranks = [(home,) for home in homes]
    ranks_at = domains.positions(homes_of_ranks)
    scope = mode.scope or demand.options.scope
    domain_of = domains.domains_of(topology, ranks_at, allowed, scope=scope, unique=mode.unique)
    return tuple(RankGroup(ranks, domain_of[homes], homes) for homes, ranks in ranks_at.items())


def _split(
    groups: Sequence[RankGroup], options: Options, mode: PlanMode
) -> Iterator[tuple[int, tuple[Core, ...]]]:
    balanced = mode.balances and options.balanced
    smallest_quota = min(len(group.domain) // len(group.ranks) for group in groups)
    for group in groups:
        ranks = len(group.ranks)
        quota = smallest_quota
        if not balanced:
            quota = len(group.domain) // ranks
        for index, rank in enumerate(group.ranks):
            position = Position(index, ranks, quota, balanced=balanced)
            yield rank, domains.best_first(mode.split(group.domain, position))


def _rank_plans(
    topology: Topology, demand: Demand, mode: PlanMode, division: Division
) -> Iterator[RankPlan]:
    groups, cores_of, share = division
    options = demand.options
    reasons = Reasons(topology, demand, mode, cores_of, share)
    least = options.min_physical_cores if mode.counts else 1
    most = options.max_physical_cores if mode.counts else None
    cut: dict[int, tuple[Core, ...]] = {}
    ranks_on: Counter[int] = Counter()  # core, by its lowest CPU → how many ranks have it
    for rank, cores in sorted(cores_of.items()):
        cut[rank] = cores[:most]
        ranks_on.update([core.cpus[0] for core in cut[rank]])
    group_of = domains.group_of_ranks(groups)
    sets: dict[CpuSet, CpuSet] = {}  # equal sets are kept once: replies are cached
    for rank, cores in cut.items():
        if len(cores_of[rank]) < least:
            raise UnsatisfiableError(too_few_cores(demand, rank, cores_of, least))
        gpu = demand.gpus[rank]
        group = group_of[rank]
        cpus = given_cpus(cores, options)
        cpus = sets.setdefault(cpus, cpus)
        homes = group.homes
        widening = None
        if mode.everywhere:
            homes = (cores[0].node,)
        else:
            widening = _widening(topology, demand, group, gpu, cores)
        if widening:
            widening = widening._replace(cpus=sets.setdefault(widening.cpus, widening.cpus))
        yield RankPlan(
            rank=rank,
            gpu=gpu,
            cpus=cpus,
            physical_cores=len(cores),
            home_node=homes[0],
            locality=locality(vicinity(topology, [gpu]), cpus),
            memory_node=topology.memory_node(homes[0]),
            threads=max(1, len(cores) // max(ranks_on[core.cpus[0]] for core in cores)),
            reasons=tuple(reasons.of(rank, homes, widening)),
            widening=widening,
        )


def _widening(
    topology: Topology, demand: Demand, group: RankGroup, gpu: Gpu, cores: Iterable[Core]
) -> Widening | None:
    """Return a rank's far CPUs, and how many CPUs its group asked for; None: no far CPU."""
    options = demand.options
    if options.cpus is None:
        return None
    first_cpus = {core.cpus[0] for core in chain(*group.domain)}
    near = {*group.homes, *near_nodes(topology, gpu)}
    far_cores = [core for core in cores if core.node not in near]
    further = [core for core in far_cores if core.cpus[0] not in first_cpus]
    if not further:
        return None
    at_home = [core for core in chain(*group.domain) if core.node in group.homes]
    asked = domains.asked_together(demand, group, options.cpus)
    return Widening(given_cpus(further, options), len(given_cpus(at_home, options)), asked)
