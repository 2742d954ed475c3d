"""One request from its parts to its reply: GPUs meant, CPUs allowed, plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from affinityd.config import OBSERVE, ON, least_switch
from affinityd.cpuset import CpuSet, format_list
from affinityd.errors import UnsatisfiableError
from affinityd.planner.domains import usable
from affinityd.planner.model import Demand, Plan, PlanWarning
from affinityd.planner.planner import plan
from affinityd.request.asked_cpus import asked_cpus
from affinityd.request.parameters import Request
from affinityd.request.ranks import Ranks, ranks_of
from affinityd.request.reply import Reply
from affinityd.request.slurm_binding import (
    cpus_of_step,
    is_closest,
    is_on_slice,
    own_slices,
    parts_of_slices,
)
from affinityd.request.step.shares import StepShares
from affinityd.text import quote
from affinityd.topology.model import ON_SWITCH, Node, Topology
from affinityd.topology.nearness import vicinity
from affinityd.topology.rdma import NearNic, nics_of_gpus

AMBIGUOUS = PlanWarning(
    "ambiguous_index",
    "this machine has GPUs of several models, which CUDA numbers fastest first; an index here "
    "follows the PCI bus: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by their UUIDs",
)


#: Modes that divide cores, and the mode of a task that has cores of its own.
ALONE = {
    "unique_contiguous": "all",
    "unique_interleaved": "all",
    "exclusive": "all",
    "single_unique": "single",
}


@dataclass(frozen=True)
class Planned:
    """A plan, and the ranks and CPUs that it is for."""

    ranks: Ranks
    allowed: CpuSet
    asked: int | None  #: logical CPUs that each rank asked for; None: unknown
    plan: Plan


@dataclass(frozen=True)
class Caller:
    """The process that requests a plan, as far as it is known."""

    mask: CpuSet  #: its affinity mask
    #: The CPUs that its cgroup allows, never narrower than the mask; None: unknown.
    cpuset: CpuSet | None = None


def answer(
    node: Node,
    request: Request,
    caller: Caller | None = None,
    *,
    planner: Callable[[Topology, Demand], Plan] = plan,
) -> Reply:
    """Plan one request: devices meant, CPUs allowed, plan.

    `caller` is None where it is not known. Raises AffinityError.
    """
    topology = node.topology
    caller = None if request.whose == "node" else caller
    within = caller.cpuset if caller else None
    mask, source = _cpuset(request, caller, topology)
    cpuset = cpus_of_step(request, mask)
    if within is not None:
        cpuset &= within
    ranks = ranks_of(topology, request, mask, cpuset)
    allowed = node.usable & cpuset

    def planned(ranks: Ranks, allowed: CpuSet, mode: str, asked: int | None = None) -> Planned:
        if asked is None:
            asked = asked_cpus(topology, request, ranks, allowed, node.usable)
        options = replace(request.options, mode=mode, cpus=asked)
        made = planner(topology, Demand(ranks.gpus, allowed, node.usable, options))
        return Planned(ranks, allowed, asked, made)

    found = _beside_siblings(topology, request, mask, ranks, allowed, planned=planned)
    ranks, allowed, made = found.ranks, found.allowed, found.plan
    request = replace(request, options=replace(request.options, cpus=found.asked))
    said = (AMBIGUOUS,) if ranks.ambiguous else ()
    of_gpus = nics_of_gpus(topology)
    nics = {it.rank: of_gpus[it.gpu.key].best(request.nics) for it in made.ranks}
    return Reply(
        node=topology.name,
        generation=node.generation,
        request=request,
        entries=tuple(name for name, _ in ranks.entries),
        asked_ranks=ranks.asked,
        allowed=allowed,
        source=source,
        within=within,
        plan=replace(made, warnings=(*made.warnings, *said, *_far_nics(made, nics))),
        nics=nics,
        switch=least_switch(node.switch, ON if request.observe is None else OBSERVE),
    )


def _beside_siblings(
    topology: Topology,
    request: Request,
    mask: CpuSet,
    ranks: Ranks,
    allowed: CpuSet,
    *,
    planned: Callable[..., Planned],
) -> Planned:
    """Plan a task beside the others of its step, which Slurm gave slices of the CPUs.

    In a mode that divides cores no plan is narrower than a near slice: see `step/shares`.
    """
    mode = request.options.mode
    if mode not in ALONE or request.ranks is None or not is_on_slice(request, mask):
        return planned(ranks, allowed, mode)
    task = request.rank[0] if request.rank else 0
    own = own_slices(request)

    def alone(cpus: CpuSet) -> Planned:
        if len(ranks.own.entries) > 1 and mode == "single_unique":  # a core for each of its GPUs
            try:
                return planned(ranks.own, cpus, mode)
            except UnsatisfiableError:
                pass
        return planned(ranks.own, cpus, ALONE[mode])

    if is_closest(request) and own[task]:
        return alone(own[task] & allowed)
    try:
        found = planned(ranks, allowed, mode)
    except UnsatisfiableError:  # so are all tasks of the step, where each knows the same GPUs
        last = parts_of_slices(request, usable(topology.cores, allowed))[task]
        if last and (request.job is not None or ranks.deals):
            return alone(last)
        raise
    if not ranks.deals or ALONE[mode] == "single":
        return found
    step = _step(topology, request, ranks, allowed, found)
    if rest := _rest_divided(request, step, found, allowed, planned=planned):
        return rest
    share = step.share(task, ranks.dealt)
    return found if share == step.part(ranks.dealt) else alone(share)


def _rest_divided(
    request: Request,
    step: StepShares,
    division: Planned,
    allowed: CpuSet,
    *,
    planned: Callable[..., Planned],
) -> Planned | None:
    """Divide the CPUs among the tasks that keep no slice, if each knows which ones do.

    None: one of them does not, the caller keeps its own, or these CPUs cannot be divided.
    """
    ranks, (task, *_), tasks = division.ranks, request.rank or (0,), request.ranks or 1
    kept = step.kept_in_all() if ranks.is_certain(task) else {}
    if not kept or task in kept:
        return None
    others = ranks.of_tasks(frozenset(range(tasks)) - kept.keys())
    rest = allowed.difference(*kept.values())
    try:
        return planned(others, rest, request.options.mode, division.asked)
    except UnsatisfiableError:  # all of them are refused, and keep their slices, too
        return None


def _step(
    topology: Topology, request: Request, ranks: Ranks, allowed: CpuSet, division: Planned
) -> StepShares:
    """Return the tasks of a step, whose cores would be divided so."""
    cores, least = usable(topology.cores, allowed), request.options.min_physical_cores
    near = [vicinity(topology, [gpu]).cpus for gpu in ranks.of_step]
    cpus_of = [it.cpus for it in division.plan.ranks]

    def suffices(cpus: CpuSet) -> bool:
        return bool(cpus) if least == 1 else len(usable(cores, cpus)) >= least

    return StepShares(
        own=[it & allowed for it in own_slices(request)],
        last=parts_of_slices(request, cores),
        deals=ranks.deals,
        near=lambda its: [near[gpu] for gpu in its.gpus],
        part=lambda its: frozenset().union(*(cpus_of[it] for it in its.ranks)),
        suffices=suffices,
    )


def _far_nics(made: Plan, nics: Mapping[int, tuple[NearNic, ...]]) -> Iterator[PlanWarning]:
    """Yield a warning for each rank whose GPU has no RDMA device on its PCI switch."""
    for rank in made.ranks:
        for best in nics[rank.rank][:1]:
            if best.link not in ON_SWITCH:
                yield PlanWarning(
                    "no_local_nic",
                    f"rank {rank.rank}: no RDMA device is on the PCI switch of GPU "
                    f"{rank.gpu.index}; {best.port.device} is nearest ({best.link})",
                    rank.rank,
                )


def _cpuset(request: Request, caller: Caller | None, topology: Topology) -> tuple[CpuSet, str]:
    """Return the CPUs to plan on, never wider than the caller's cpuset, and their source.

    Raises UnsatisfiableError where the request names no CPU of that.
    """
    if request.cpuset is None:
        return (caller.mask, "caller") if caller else (topology.online, "node")
    if caller is None or caller.cpuset is None:
        return request.cpuset, "request"
    cpus = request.cpuset & caller.cpuset
    if not cpus:
        asked, own = (quote(format_list(it)) for it in (request.cpuset, caller.cpuset))
        raise UnsatisfiableError(
            f"cpuset: none of {asked} is in the caller's own cpuset, {own}; name CPUs of that, or "
            "leave cpuset out"
        )
    return cpus, "request"
