"""Warnings for the caller of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from affinityd.cpuset import format_list
from affinityd.grouping import counted
from affinityd.planner.gpu_blocks import shares_node
from affinityd.planner.model import Demand, Options, PlanWarning, RankPlan
from affinityd.planner.modes import PlanMode
from affinityd.text import count, node_name
from affinityd.topology.model import Topology


def warnings(
    topology: Topology, demand: Demand, mode: PlanMode, ranks: Sequence[RankPlan], share: str
) -> Iterator[PlanWarning]:
    """Yield the warnings for a caller of the plan."""
    yield from _ignored(demand.options, mode)
    if share != "node" and shares_node(demand, mode):
        yield PlanWarning(
            "share_unavailable",
            (
                "a node has fewer allowed cores than GPUs, or a GPU's block fewer CPUs than "
                "were asked for: the cores were divided among the requested GPUs only, and "
                "jobs on other GPUs may get the same ones"
            ),
        )
    entries = counted(gpu.key for gpu in demand.gpus)
    for rank in ranks:
        for code, message in _of_rank(rank, entries[rank.gpu.key], demand.options.cpus, share):
            yield PlanWarning(code, f"rank {rank.rank}{message}", rank.rank)
    if demand.options.cpus is not None and not mode.everywhere:
        yield from _idle(topology, demand, ranks)


def _of_rank(
    rank: RankPlan, entries: int, asked: int | None, share: str
) -> Iterator[tuple[str, str]]:
    """Yield codes and messages about a rank; `entries`: how many ranks have its GPU."""
    gpu, home, wide = rank.gpu, node_name(rank.home_node), rank.widening
    if rank.locality == "remote":
        place = f"NUMA node {gpu.numa_node}, where its GPU {gpu.index} is"
        yield "remote_home", f" has CPUs away from {place}; its home is {home}"
    if rank.locality == "unknown":
        yield (
            "unknown_locality",
            f": the machine does not say on which NUMA node GPU {gpu.index} is",
        )
    if entries > 1:
        yield "shared_gpu", f" is one of {entries} ranks on GPU {gpu.index}"
    if asked is not None and share == "node" and len(rank.cpus) < asked:
        block = f"the {len(rank.cpus)} CPUs of its GPU's block, to which share=node keeps"
        yield "parameter_ignored", f": cpus={asked} is more than {block}"
    if wide:
        lack = f"{wide.near} allowed CPUs are near, and {wide.asked} were asked for"
        yield "widened", f" has CPUs {format_list(wide.cpus)} away from {home}, its home: {lack}"


def _idle(topology: Topology, demand: Demand, ranks: Sequence[RankPlan]) -> Iterator[PlanWarning]:
    """Yield a warning where allowed CPUs stay idle, as they are near none of the GPUs."""
    near = frozenset().union(*(topology.cpus_of_node(rank.home_node) for rank in ranks))
    idle = demand.allowed - near - frozenset().union(*(rank.cpus for rank in ranks))
    if idle:
        yield PlanWarning(
            "idle_cpus",
            f"{count(len(idle), 'allowed CPU')} ({format_list(idle)}) will stay idle: far from "
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
                "parameter_ignored", f"{name}={shown} has no effect in mode {options.mode}"
            )
