"""Home nodes and their domains: the cores that the ranks of a node may get, in order.

With share=node every GPU of the machine has a block of cores of its own, which depends on the
machine and its reserved CPUs alone, so unrelated jobs do not overlap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, zip_longest
from typing import NamedTuple, TypeVar

from affinityd.cpuset import CpuSet
from affinityd.planner import Demand, Options
from affinityd.planner.modes import Bundle, Domain, PlanMode, Position, Split
from affinityd.topology.model import Core, Gpu, NumaNode, Topology, cpus_of

K = TypeVar("K")
RankCores = Mapping[int, tuple[Core, ...]]  #: each rank's cores, best first
Nodes = tuple[int | None, ...]  #: numbers of NUMA nodes: one, or several that are equally near
#: The keys of a node's GPUs, the node's domain, and each GPU's block.
NodeBlocks = tuple[tuple[tuple[str, int], ...], Domain, tuple[Domain, ...]]


class RankGroup(NamedTuple):
    """Ranks that divide one domain, in request order."""

    ranks: tuple[int, ...]
    domain: Domain
    homes: Nodes  #: home nodes of all ranks in the group; (): the domain is every allowed core


def usable_cores(cores: Iterable[Core], allowed: CpuSet) -> tuple[Core, ...]:
    """Return the cores with an allowed CPU, in their order, each cut down to its allowed CPUs."""
    parts = []
    for core in cores:
        if allowed.issuperset(core.cpus):
            parts.append(core)
        elif cpus := tuple(cpu for cpu in core.cpus if cpu in allowed):
            parts.append(core._replace(cpus=cpus))
    return tuple(parts)


def nearest_nodes(topology: Topology, gpus: Sequence[Gpu], allowed: CpuSet) -> list[Nodes]:
    """Return for each rank the nodes with allowed CPUs that are nearest to its GPU, in order.

    For a GPU of unknown place all nodes are equally near. `allowed` must hold an online CPU.
    """
    candidates = [
        number
        for number in topology.nodes_with_cpus
        if not allowed.isdisjoint(topology.cpus_of_node(number))
    ]
    return [topology.nearest(gpu.numa_node, candidates) for gpu in gpus]


def home_nodes(topology: Topology, gpus: Sequence[Gpu], allowed: CpuSet) -> list[int | None]:
    """Return each rank's home node, one of its nearest nodes, for modes that divide cores.

    Ranks without a choice are placed first; then the others in rank order, each on the lowest of
    the tied nodes that have the fewest ranks so far. `allowed` must hold an online CPU.
    """
    nearest = nearest_nodes(topology, gpus, allowed)
    ranks_at: Counter[int | None] = Counter()
    homes: dict[int, int | None] = {}
    without_choice = [rank for rank, nodes in enumerate(nearest) if len(nodes) == 1]
    with_choice = [rank for rank, nodes in enumerate(nearest) if len(nodes) > 1]
    for rank in (*without_choice, *with_choice):
        home = min(nearest[rank], key=ranks_at.__getitem__)
        homes[rank] = home
        ranks_at[home] += 1
    return [homes[rank] for rank in range(len(gpus))]


def domains_of(
    topology: Topology, homes: Collection[Nodes], allowed: CpuSet, *, scope: str, unique: bool
) -> dict[Nodes, Domain]:
    """Return the domain of each group of home nodes; `unique`: no core is in two domains."""
    domains = {}
    if scope == "node" or not unique:
        find_domain = near_domain if scope == "node" else socket_domain
        for nodes in homes:
            domains[nodes] = find_domain(topology, nodes, allowed)
        return domains
    # In each package the cores that are near to no home node become partners of near cores.
    taken = {*chain.from_iterable(homes)}
    near_cores = []
    partners = []
    for core in usable_cores(topology.cores, allowed):
        if core.node in taken:
            near_cores.append(core)
        else:
            partners.append(core)
    bundles = deal(near_cores, partners)
    for nodes in homes:
        domains[nodes] = tuple(bundle for bundle in bundles if bundle[0].node in nodes)
    return domains


def nearest_first(topology: Topology, homes: Nodes) -> list[int | None]:
    """Return the numbers of all nodes: home nodes, then the others by distance from the first."""

    def distance_and_order(node: NumaNode) -> tuple[float, tuple[bool, int]]:
        return topology.distance(homes[0], node.number), node.order

    others = [node for node in topology.nodes if node.number not in homes]
    others.sort(key=distance_and_order)
    return [*homes, *(node.number for node in others)]


def near_domain(topology: Topology, homes: Nodes, allowed: CpuSet) -> Domain:
    """Return the cores of home nodes, node by node."""
    cores = chain.from_iterable(topology.node_cores[number] for number in homes)
    return single_bundles(usable_cores(cores, allowed))


def socket_domain(topology: Topology, homes: Nodes, allowed: CpuSet) -> Domain:
    """Return the home nodes' cores, then those of other nodes in their packages, nearest first."""
    at_home = chain.from_iterable(topology.node_cores[number] for number in homes)
    packages = {core.package for core in at_home}
    cores: list[Core] = []
    for number in nearest_first(topology, homes):
        cores += [core for core in topology.node_cores[number] if core.package in packages]
    return single_bundles(usable_cores(cores, allowed))


def deal(near_cores: Iterable[Core], partners: Sequence[Core]) -> Domain:
    """Deal partners round-robin to the near cores of their package."""
    bundles = []
    bundles_of: dict[int | None, list[list[Core]]] = {}  # package → bundles of its near cores
    for core in near_cores:
        bundle = [core]
        bundles.append(bundle)
        bundles_of.setdefault(core.package, []).append(bundle)
    dealt_in: Counter[int | None] = Counter()  # package → how many partners have been dealt
    for core in partners:
        in_package = bundles_of.get(core.package)
        if in_package:
            in_package[dealt_in[core.package] % len(in_package)].append(core)
            dealt_in[core.package] += 1
    return tuple(tuple(bundle) for bundle in bundles)


def best_first(bundles: Iterable[Bundle]) -> tuple[Core, ...]:
    """Return a rank's cores: the near cores, then the partners, in dealing order."""
    dealt = chain.from_iterable(zip_longest(*bundles))
    return tuple(core for core in dealt if core is not None)


def restrict(domain: Domain, allowed: CpuSet) -> Domain:
    """Return a domain cut down to a narrower cpuset; the partners that remain are dealt again."""
    near_cores = usable_cores((bundle[0] for bundle in domain), allowed)
    partners = usable_cores(best_first(bundle[1:] for bundle in domain), allowed)
    return deal(near_cores, partners)


def single_bundles(cores: Iterable[Core]) -> Domain:
    """Return a domain whose cores bring no partners."""
    return tuple((core,) for core in cores)


def positions(keys: Iterable[K]) -> dict[K, tuple[int, ...]]:
    """Return the positions of each key, keys in order of first appearance."""
    listed: dict[K, list[int]] = {}
    for position, key in enumerate(keys):
        listed.setdefault(key, []).append(position)
    return {key: tuple(places) for key, places in listed.items()}


def shares_node(demand: Demand, mode: PlanMode) -> bool:
    """Return whether each GPU's ranks must stay in the GPU's block."""
    if demand.options.share != "auto" or not mode.shares_node:
        return mode.shares_node and demand.options.share == "node"
    # If ranks on one GPU may overlap, they divide more than the GPU's block.
    has_own_gpus = len({gpu.key for gpu in demand.gpus}) == len(demand.gpus)
    return demand.allowed == demand.unreserved and (mode.unique or has_own_gpus)


def gpu_blocks(
    topology: Topology, demand: Demand, mode: PlanMode
) -> Mapping[tuple[str, int], Domain]:
    """Return each GPU's block, within the demand's allowed CPUs, by the GPU's key.

    Balanced blocks have as many cores as the smallest. If a GPU may use none of its block, its
    node is divided again. A GPU is missing if its node has fewer allowed cores than GPUs.
    """
    options = demand.options
    allowed = demand.allowed
    of_nodes = _blocks_of_nodes(topology, mode.scope or options.scope, mode.cut, demand.unreserved)
    # Blocks of a node with fewer cores than GPUs do not count when blocks are balanced.
    sizes: list[int] = []
    for _, _, cut in of_nodes:
        if all(cut):
            sizes += map(len, cut)
    keep = None
    if mode.balances and options.balanced:
        keep = min(sizes, default=None)
    block_of: dict[tuple[str, int], Domain] = {}
    for gpus, domain, cut in of_nodes:
        # The second division must not depend on `keep`: jobs with another `balanced` must find the
        # same blocks.
        parts: Sequence[Domain] = ()
        if allowed == demand.unreserved:
            if all(cut):
                parts = [block[:keep] for block in cut]
        elif all(restrict(block, allowed) for block in cut):
            parts = [
                restrict(block[:keep], allowed) or restrict(block, allowed)[:keep] for block in cut
            ]
        else:
            again = restrict(domain, allowed)
            if len(again) >= len(cut):
                parts = _pieces(again, len(cut), mode.cut)
        block_of.update(zip(gpus, parts, strict=False))
    return block_of


@lru_cache(maxsize=8)
def _blocks_of_nodes(
    topology: Topology, scope: str, cut: Split, unreserved: CpuSet
) -> Sequence[NodeBlocks]:
    """Return the blocks of every node, computed once for all jobs."""
    gpus_at = positions((home,) for home in home_nodes(topology, topology.gpus, unreserved))
    domains = domains_of(topology, gpus_at, unreserved, scope=scope, unique=True)
    of_nodes = []
    for homes, places in gpus_at.items():
        keys = tuple(topology.gpus[place].key for place in places)
        of_nodes.append((keys, domains[homes], _pieces(domains[homes], len(places), cut)))
    return of_nodes


def _pieces(domain: Domain, number: int, cut: Split) -> tuple[Domain, ...]:
    pieces = []
    for index in range(number):
        position = Position(index, number, 0, balanced=False)
        pieces.append(cut(domain, position))
    return tuple(pieces)


def given_cpus(cores: Iterable[Core], options: Options) -> CpuSet:
    """Return the CPUs that a rank with these cores is given."""
    if options.multithreading == "single_logical":
        return frozenset(core.cpus[0] for core in cores)
    return cpus_of(cores)


def widen_domains(
    topology: Topology, demand: Demand, groups: Sequence[RankGroup], *, asked: int, divides: bool
) -> tuple[RankGroup, ...]:
    """Return the groups, with domains that hold `asked` CPUs for each rank.

    After its own cores, a domain is filled with the nearest allowed cores that no group's domain
    has, until it suffices or no core is left. A domain with a core for each of its ranks stays as
    it is: with cores added at its end, the last ranks would get no near core.
    """
    taken: list[Core] = []
    for group in groups:
        taken.extend(chain(*group.domain))
    free = _free_cores(topology, demand, taken)
    wider = []
    for group in groups:
        has = len(given_cpus(chain(*group.domain), demand.options))
        is_short = not divides or len(group.domain) < len(group.ranks)
        lack = 0
        if is_short:
            lack = asked_together(demand, group, asked) - has
        further = _take(free, topology, demand, group.homes, lack)
        surplus = len(given_cpus(further, demand.options)) - lack
        if demand.cuts_cores and not divides and further and surplus > 0:
            last = further[-1]
            further = (*further[:-1], last._replace(cpus=last.cpus[:-surplus]))
        wider.append(group._replace(domain=(*group.domain, *single_bundles(further))))
    return tuple(wider)


def asked_together(demand: Demand, group: RankGroup, asked: int) -> int:
    """Return how many logical CPUs the ranks of a group ask for; by default `asked` each."""
    return demand.together.get(group.homes[0], asked * len(group.ranks))


def top_up_cores(
    topology: Topology,
    demand: Demand,
    groups: Sequence[RankGroup],
    cores_of: RankCores,
    *,
    asked: int,
) -> RankCores:
    """Return the cores of a unique mode: no rank lacks CPUs while allowed CPUs are idle.

    A division may leave idle cores while a rank lacks CPUs: cores are not cut in two, and no group
    takes cores of another's domain.
    """
    free = _free_cores(topology, demand, chain(*cores_of.values()))
    group_of = group_of_ranks(groups)
    full = {}
    for rank, cores in sorted(cores_of.items()):
        lack = asked - len(given_cpus(cores, demand.options))
        full[rank] = cores + _take(free, topology, demand, group_of[rank].homes, lack)
    return full


def group_of_ranks(groups: Iterable[RankGroup]) -> Mapping[int, RankGroup]:
    """Return the group of each rank."""
    group_of = {}
    for group in groups:
        group_of.update(dict.fromkeys(group.ranks, group))
    return group_of


def _free_cores(topology: Topology, demand: Demand, taken: Iterable[Core]) -> list[Core]:
    first_cpus = {core.cpus[0] for core in taken}
    allowed = usable_cores(topology.cores, demand.allowed)
    return [core for core in allowed if core.cpus[0] not in first_cpus]


def _take(
    free: list[Core], topology: Topology, demand: Demand, homes: Nodes, lack: int
) -> tuple[Core, ...]:
    """Take the free cores nearest to home nodes, until they have `lack` CPUs or no core is left."""
    cores: list[Core] = []
    if lack > 0:
        order = nearest_first(topology, homes)

        def use_and_distance(core: Core) -> tuple[bool, int]:
            return core.cpus[0] in demand.others, order.index(core.node)

        free.sort(key=use_and_distance)
    while lack > 0 and free:
        cores.append(free.pop(0))
        lack -= len(given_cpus(cores[-1:], demand.options))
    return tuple(cores)
