"""What a caller should know before it uses a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from affinityd.cpuset import format_list
from affinityd.planner.model import Demand, Options, PlanWarning, RankPlan
from affinityd.planner.modes import PlanMode
from affinityd.planner.reasons import remote_rank, widened_rank
from affinityd.text import count
from affinityd.topology.model import Topology


def warnings(
    topology: Topology, demand: Demand, mode: PlanMode, ranks: Sequence[RankPlan], share: str
) -> Iterator[PlanWarning]:
    """Yield what a caller should know before it uses the plan."""
    yield from _ignored(demand.options, mode)
    wants_node = demand.options.share != "requested" and mode.shares_node
    unconfined = demand.allowed == demand.unreserved
    if wants_node and share != "node" and (unconfined or demand.options.share == "node"):
        yield PlanWarning(
            "share_unavailable",
            "a node has fewer allowed cores than GPUs, or a GPU's block fewer CPUs than were asked "
            "for: the cores were divided among the requested GPUs alone, and jobs on other GPUs "
            "may be given the same ones",
        )
    entries = Counter(gpu.key for gpu in demand.gpus)
    for rank in ranks:
        gpu = rank.gpu
        if rank.locality == "remote":
            yield PlanWarning("remote_home", remote_rank(rank), rank.rank)
        if rank.locality == "unknown":
            yield PlanWarning(
                "unknown_locality",
                f"rank {rank.rank}: the machine does not say on which NUMA node GPU {gpu.index} is",
                rank.rank,
            )
        if entries[gpu.key] > 1:
            yield PlanWarning(
                "shared_gpu",
                f"rank {rank.rank} is one of {entries[gpu.key]} ranks on GPU {gpu.index}",
                rank.rank,
            )
        asked = demand.options.cpus
        if asked is not None and share == "node" and len(rank.cpus) < asked:
            yield PlanWarning(
                "parameter_ignored",
                f"rank {rank.rank}: cpus={asked} is more than the {len(rank.cpus)} CPUs of its "
                f"GPU's block, to which share=node keeps",
                rank.rank,
            )
        if rank.widening:
            yield PlanWarning("widened", widened_rank(rank, rank.widening), rank.rank)
    if demand.options.cpus is not None and not mode.everywhere:
        yield from _idle(topology, demand, ranks)


def _idle(topology: Topology, demand: Demand, ranks: Sequence[RankPlan]) -> Iterator[PlanWarning]:
    """Yield a warning where allowed CPUs stay idle, as they are near none of the GPUs."""
    near = frozenset().union(*(topology.cpus_of_node(rank.home_node) for rank in ranks))
    idle = demand.allowed - near - frozenset().union(*(rank.cpus for rank in ranks))
    if idle:
        yield PlanWarning(
            "idle_cpus",
            f"{count(len(idle), 'allowed CPU')} ({format_list(idle)}) will stay idle, near none of "
            "these GPUs",
        )


def _ignored(options: Options, mode: PlanMode) -> Iterator[PlanWarning]:
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
            shown = str(value).lower()  # a boolean as it is written
            yield PlanWarning(
                "parameter_ignored", f"{name}={shown} means nothing to mode {options.mode}"
            )
