"""Which GPUs a running process and its descendants use: by environments, else by the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from affinityd.audit.model import GpuHolders
from affinityd.audit.sources.holders import HolderSources
from affinityd.cli.target import ProcessPlanner
from affinityd.cpuset import several
from affinityd.discovery.nvml.query import query_processes
from affinityd.linux.processes import Stat, descendants
from affinityd.planner import RankPlan
from affinityd.topology.model import Gpu
from affinityd.topology.nearness import vicinity

NOT_NAMED = (
    "its environment names none of {gpus}, and {why}: it is not judged, since CPUs near any of "
    "them count as near; name the one that it uses with --gpus N"
)
USES_NONE = "by the driver it uses none of them now"
NOT_KNOWN = "which one it uses is not known ({why})"
REPLAYED = "the machine is replayed"


@dataclass(frozen=True)
class UsedGpus:
    """The GPUs of processes, by pid."""

    ranks: Mapping[int, Sequence[RankPlan]]  #: a process that is left out works for its parent
    doubts: Mapping[int, str]  #: why a process may use only some of them
    by_driver: bool = False  #: it has named the GPUs of some


def used_gpus(process: Stat, planner: ProcessPlanner, *, is_named: bool) -> UsedGpus:
    """Return the GPUs of a process and its descendants, as a launcher's ranks have them.

    Where the environment names none of GPUs on several NUMA nodes, the driver is asked, unless
    the user has named them. Raises AffinityError if there is no plan for the process itself.
    """
    tree = [process, *descendants(process.number)]
    plans = {process.number: planner.plan(process)}
    plans |= {it.number: plan for it in tree[1:] if (plan := planner.plan_or_none(it))}
    ranks: dict[int, Sequence[RankPlan]] = {pid: plan.ranks for pid, plan in plans.items()}
    unclear = {
        it.number
        for it in tree
        if not is_named and it.number in ranks and planner.context(it).visible is None
        if len(vicinity(planner.topology, gpus_of(ranks[it.number])).nodes) > 1
    }
    held = _held(planner) if unclear else GpuHolders()
    using = {it.pid: {it.gpu, *it.beside} for it in held.holdings if it.pid in unclear}
    for pid, keys in using.items():
        ranks[pid] = [it for it in ranks[pid] if it.gpu.key in keys] or ranks[pid]
    for helper in _helpers(tree, unclear, using.keys()):
        del ranks[helper]
    why = next((NOT_KNOWN.format(why=why) for why in held.unknown.values()), USES_NONE)
    clear = (ranks.keys() - unclear) | using.keys()
    is_told = using and not held.unknown  # the others of the tree use none: they are helpers
    doubtful = () if is_told else (unclear & ranks.keys()) - clear - _launchers(tree, clear)
    names = {pid: several("GPU", (gpu.index for gpu in gpus_of(ranks[pid]))) for pid in doubtful}
    doubts = {pid: NOT_NAMED.format(gpus=its, why=why) for pid, its in names.items()}
    return UsedGpus(ranks, doubts, by_driver=bool(using))


def gpus_of(ranks: Sequence[RankPlan]) -> tuple[Gpu, ...]:
    """Return the GPUs of ranks, each once."""
    return tuple({rank.gpu.key: rank.gpu for rank in ranks}.values())


def _held(planner: ProcessPlanner) -> GpuHolders:
    """Return the holders of the GPUs, by the sources of the audit."""
    if planner.node.replayed:
        return GpuHolders.unknown_of(planner.topology.gpus, REPLAYED)
    return HolderSources(query_processes).held(planner.topology)


def _helpers(
    tree: Sequence[Stat], unclear: AbstractSet[int], using: AbstractSet[int]
) -> AbstractSet[int]:
    """Return the descendants, without a GPU of their own, of processes that use one."""
    found: set[int] = set()
    for stat in tree:  # parents before children
        if stat.number in unclear - using and stat.parent in using | found:
            found.add(stat.number)
    return found


def _launchers(tree: Sequence[Stat], known: AbstractSet[int]) -> AbstractSet[int]:
    """Return the ancestors of processes with known GPUs."""
    found: set[int] = set()
    for stat in reversed(tree):
        if stat.number in known | found:
            found.add(stat.parent)
    return found
