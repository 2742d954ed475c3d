"""One request from its parts to its reply: GPUs meant, CPUs allowed, plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from affinityd.config.switch import OBSERVE, ON, least
from affinityd.cpuset import CpuSet, format_list
from affinityd.errors import UnsatisfiableError
from affinityd.planner.model import Demand, Plan, PlanWarning
from affinityd.planner.planner import plan
from affinityd.request.asked_cpus import asked_cpus
from affinityd.request.parameters import Request
from affinityd.request.ranks import ranks_of
from affinityd.request.reply import Reply
from affinityd.request.slurm_binding import cpus_of_step
from affinityd.text import quote
from affinityd.topology.model import ON_SWITCH, Node, Topology
from affinityd.topology.rdma import NearNic, nics_of_node

AMBIGUOUS = PlanWarning(
    "ambiguous_index",
    "this machine has GPUs of several models, which CUDA numbers fastest first; an index here "
    "follows the PCI bus: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by their UUIDs",
)


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
    usable_cpus = topology.online - node.reserved
    caller = None if request.whose == "node" else caller
    within = caller.cpuset if caller else None
    mask, source = _cpuset(request, caller, topology)
    cpuset = cpus_of_step(request, mask)
    if within is not None:
        cpuset &= within
    ranks = ranks_of(topology, request, mask, cpuset)
    gpus = tuple(device.gpu for _, device in ranks.entries)
    allowed = usable_cpus & cpuset
    asked = asked_cpus(topology, request, ranks, allowed, usable_cpus)
    request = replace(request, options=replace(request.options, cpus=asked))
    made = planner(topology, Demand(gpus, allowed, usable_cpus, request.options))
    said = (AMBIGUOUS,) if ranks.ambiguous else ()
    of_gpus = nics_of_node(node)
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
        switch=least(node.switch, ON if request.observe is None else OBSERVE),
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
