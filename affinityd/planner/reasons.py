"""Why each rank has its CPUs, and the warnings for the caller of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from affinityd.cpuset import format_list, named_nodes
from affinityd.planner import Demand, Options, PlanWarning, RankPlan, Widening
from affinityd.planner.domains import (
    Nodes,
    RankCores,
    nearest_nodes,
    shares_node,
    socket_domain,
    usable_cores,
)
from affinityd.planner.modes import PlanMode
from affinityd.text import count, node_name
from affinityd.topology.model import Core, Gpu, Topology, cpus_of
from affinityd.topology.nearness import MIXED, REMOTE, UNKNOWN


class Reasons:
    """Explains each rank's CPUs in one plan; reasons that ranks have in common are found once."""

    def __init__(
        self, topology: Topology, demand: Demand, mode: PlanMode, cores_of: RankCores, share: str
    ) -> None:
        """Take the plan's `share`, and its cores before `max_physical_cores` cuts them."""
        self.topology = topology
        self.demand = demand
        self.mode = mode
        self.cores_of = cores_of
        self.share = share
        #: Core, by its lowest CPU → how many ranks have it.
        self.ranks_on = Counter(core.cpus[0] for core in chain.from_iterable(cores_of.values()))
        #: Home nodes → the reasons that their ranks have in common.
        self.of_nodes: dict[Nodes, tuple[str, ...]] = {}

    def of(self, rank: int, homes: Nodes, widening: Widening | None) -> Iterator[str]:
        """Yield why a rank has its CPUs, and why other CPUs were left out."""
        gpu = self.demand.gpus[rank]
        cores = self.cores_of[rank]
        if gpu.numa_node is None:
            yield f"the machine does not say on which NUMA node GPU {gpu.index} is"
        else:
            source = f" (by {gpu.numa_source})" if gpu.numa_source else ""
            yield f"GPU {gpu.index} is on NUMA node {gpu.numa_node}{source}"
        if gpu.numa_node not in homes:
            yield self._home_choice(gpu, homes)
        yield self._division(cores)
        if widening is not None:
            has = "has" if len(homes) == 1 else "have"
            yield (
                f"{named_nodes(homes)} {has} {widening.at_home} allowed CPUs, and {widening.asked} "
                f"were asked for: CPUs {format_list(widening.cpus)} of other nodes were added"
            )
        if homes not in self.of_nodes:
            self.of_nodes[homes] = (*self._left_to_others(homes[0]), *self._out_of_reach(homes))
        yield from self.of_nodes[homes]

    def _home_choice(self, gpu: Gpu, homes: Nodes) -> str:
        topology = self.topology
        names = named_nodes(homes)
        if self.mode.everywhere:
            return f"its block begins on {names}"
        if len(topology.nodes_with_cpus) == 1:
            return f"only {names} has CPUs"
        if gpu.numa_node is None and self.mode.shares:
            return f"any allowed CPU may be near: those of {names}"
        if gpu.numa_node is None:
            return f"{names} was home to the fewest ranks"
        lack = "allowed CPU" if topology.node_cores.get(gpu.numa_node) else "CPU"
        distance = topology.distance(gpu.numa_node, homes[0])
        shown = "unknown" if distance == float("inf") else f"{distance:.0f}"
        nearest = "is the nearest that has" if len(homes) == 1 else "are the nearest that have"
        return f"that node has no {lack}; {names} {nearest} one (distance {shown})"

    def _division(self, cores: Sequence[Core]) -> str:
        topology = self.topology
        mode = self.demand.options.mode
        nodes = {core.node for core in cores}
        total = sum(len(topology.node_cores[number]) for number in nodes)
        sharers = max([self.ranks_on[core.cpus[0]] for core in cores])
        together = f", shared by {sharers} ranks" if sharers > 1 else ""
        return (
            f"{mode}: {count(len(cores), 'core')} of the {total} of {named_nodes(nodes)}{together}"
        )

    def _left_to_others(self, home: int | None) -> Iterator[str]:
        if self.share == "node":
            is_cut = self.mode.balances and self.demand.options.balanced
            unused = "; balanced may leave cores of it unused" if is_cut else ""
            if self.mode.unique:
                yield f"share=node: each GPU of {node_name(home)} has its own block{unused}"
            else:
                yield f"share=node: the GPUs of {node_name(home)} take its caches in turn"
        elif self.mode.balances:
            near = usable_cores(self.topology.node_cores[home], self.demand.allowed)
            spare = sum(core.cpus[0] not in self.ranks_on for core in near)
            cause = "balanced" if self.demand.options.balanced else "an equal division"
            if spare:
                yield f"{cause} leaves {count(spare, 'core')} of {node_name(home)} unused"

    def _out_of_reach(self, homes: Nodes) -> Iterator[str]:
        """Yield which CPUs of the mode's domain may not be used, and why."""
        topology = self.topology
        demand = self.demand
        if self.mode.everywhere:
            place = "the machine"
            cpus = topology.online
        elif (self.mode.scope or demand.options.scope) == "node":
            place = named_nodes(homes)
            cpus = frozenset().union(*map(topology.cpus_of_node, homes))
        else:
            place = f"the socket of {named_nodes(homes)}"
            cpus = cpus_of(chain.from_iterable(socket_domain(topology, homes, topology.online)))
        if reserved := cpus - demand.unreserved:
            yield f"CPUs {format_list(reserved)} of {place} are reserved"
        if outside := (cpus & demand.unreserved) - demand.allowed:
            yield f"CPUs {format_list(outside)} of {place} are outside the cpuset or mask"


def too_few_cores(demand: Demand, rank: int, cores_of: RankCores, least: int) -> str:
    """Return the error for a rank with fewer cores than requested, and what is possible instead."""
    smallest = min(len(cores) for cores in cores_of.values())
    if smallest:
        could = f"min_physical_cores={smallest} would work"
    else:
        could = "ask for fewer ranks, a wider cpuset, or a mode whose ranks share cores, like node"
    return (
        f"rank {rank} (GPU {demand.gpus[rank].index}) would have "
        f"{count(len(cores_of[rank]), 'physical core')}, fewer than {least}: "
        f"{count(len(demand.gpus), 'rank')}, {count(len(demand.allowed), 'allowed CPU')}; {could}"
    )


def warnings(
    topology: Topology, demand: Demand, mode: PlanMode, ranks: Sequence[RankPlan], share: str
) -> Iterator[PlanWarning]:
    """Yield the warnings for a caller of the plan."""
    options = demand.options
    defaults = Options()
    used = {
        "scope": mode.scope is None,
        "balanced": mode.balances,
        "min_physical_cores": mode.counts,
        "max_physical_cores": mode.counts,
        "share": mode.shares_node or options.share != "node",
    }
    for name, is_used in used.items():
        value = getattr(options, name)
        if not is_used and value != getattr(defaults, name):
            shown = str(value).lower()  # `true` or `false`, as users write it
            yield PlanWarning(
                "parameter_ignored", f"{name}={shown} has no effect in mode {options.mode}"
            )
    if share != "node" and shares_node(demand, mode):
        yield PlanWarning(
            "share_unavailable",
            (
                "a node has fewer allowed cores than GPUs, or a GPU's block fewer CPUs than "
                "were asked for: the cores were divided among the requested GPUs only, and "
                "jobs on other GPUs may get the same cores"
            ),
        )
    entries = Counter(gpu.key for gpu in demand.gpus)
    for rank in ranks:
        for code, message in _warn_of_rank(rank, mode, entries[rank.gpu.key], options.cpus, share):
            yield PlanWarning(code, f"rank {rank.rank}{message}", rank.rank)
    fast = demand.allowed - topology.slow
    for rank in ranks if fast else ():
        if rank.cpus <= topology.slow:
            message = f"all its cores are of a slower kind than CPUs {format_list(fast)}"
            yield PlanWarning("slow_cores", f"rank {rank.rank}: {message}", rank.rank)
    # With share=node, ranks on other GPUs plan by themselves and use the rest.
    if options.cpus is not None and not mode.everywhere and share != "node":
        nearest = nearest_nodes(topology, demand.gpus, demand.allowed)
        homes = {*demand.together}.union(*nearest)
        used_cpus = (rank.cpus for rank in ranks)
        idle = demand.allowed.difference(*map(topology.cpus_of_node, homes), *used_cpus)
        if idle:
            cpus = count(len(idle), "allowed CPU")
            listed = format_list(idle)
            yield PlanWarning("idle_cpus", f"{cpus} ({listed}) will stay idle: far from these GPUs")


def _warn_of_rank(
    rank: RankPlan, mode: PlanMode, entries: int, asked: int | None, share: str
) -> Iterator[tuple[str, str]]:
    """Yield codes and messages about a rank; `entries`: how many ranks use its GPU."""
    gpu = rank.gpu
    home = node_name(rank.home_node)
    wide = rank.widening
    # In other modes a mixed rank was widened, or its scope is the socket.
    if rank.locality == REMOTE or (mode.everywhere and rank.locality == MIXED):
        place = f"NUMA node {gpu.numa_node}, where its GPU {gpu.index} is"
        another = "" if rank.home_node == gpu.numa_node else f"; its home is {home}"
        yield "remote_home", f" has CPUs away from {place}{another}"
    if rank.locality == UNKNOWN:
        yield (
            "unknown_locality",
            f": the machine does not say on which NUMA node GPU {gpu.index} is",
        )
    if entries > 1:
        yield "shared_gpu", f" is one of {entries} ranks on GPU {gpu.index}"
    if asked is not None and share == "node" and len(rank.cpus) < asked:
        block = f"the {len(rank.cpus)} CPUs of its GPU's block, the limit with share=node"
        yield "parameter_ignored", f": cpus={asked} is more than {block}"
    if wide:
        lack = f"{wide.at_home} allowed CPUs are there, and {wide.asked} were asked for"
        yield "widened", f" has CPUs {format_list(wide.cpus)} away from {home}, its home: {lack}"
