"""What a caller should know before it uses a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from affinityd.explain import away
from affinityd.modes import Mode
from affinityd.plans import Demand, Options, RankPlan, Warn


def warnings(demand: Demand, mode: Mode, ranks: Iterable[RankPlan], share: str) -> Iterator[Warn]:
    """Yield what a caller should know before it uses the plan."""
    yield from _ignored(demand.options, mode)
    wants_node = demand.options.share != "requested" and mode.shares_node
    unconfined = demand.allowed == demand.whole
    if wants_node and share != "node" and (unconfined or demand.options.share == "node"):
        yield Warn(
            "share_unavailable",
            "a node has fewer allowed cores than GPUs: the cores were divided among the requested "
            "GPUs alone, and jobs on its other GPUs may be given the same ones",
        )
    entries = Counter(gpu.key for gpu in demand.gpus)
    for rank in ranks:
        gpu = rank.gpu
        if rank.locality == "remote":
            yield Warn("remote_home", away(rank), rank.rank)
        if rank.locality == "unknown":
            yield Warn(
                "unknown_locality",
                f"rank {rank.rank}: the machine does not say on which NUMA node GPU {gpu.index} is",
                rank.rank,
            )
        if entries[gpu.key] > 1:
            yield Warn(
                "shared_gpu",
                f"rank {rank.rank} is one of {entries[gpu.key]} ranks on GPU {gpu.index}",
                rank.rank,
            )


def _ignored(options: Options, mode: Mode) -> Iterator[Warn]:
    defaults = Options()
    heeded = {
        "scope": mode.scope is None,
        "balanced": mode.balances,
        "min_physical_cores": mode.counts,
        "max_physical_cores": mode.counts,
        "share": mode.shares_node or options.share != "node",
    }
    for name, is_heeded in heeded.items():
        value = getattr(options, name)
        if not is_heeded and value != getattr(defaults, name):
            shown = str(value).lower()  # a boolean as it is written
            yield Warn("parameter_ignored", f"{name}={shown} means nothing to mode {options.mode}")
