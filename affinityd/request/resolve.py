"""One request from its parts to its reply: GPUs meant, CPUs allowed, plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from affinityd.config import OBSERVE, ON
from affinityd.cpuset import CpuSet, format_list
from affinityd.errors import BoundError, UnsatisfiableError
from affinityd.planner import Plan, PlanWarning, RankPlan
from affinityd.request.devices import all_devices, is_ambiguous, named, visible_devices
from affinityd.request.parameters import Request
from affinityd.request.ranks import job_entries, plan_ranks
from affinityd.request.slurm_task import plan_task
from affinityd.text import quote
from affinityd.topology.model import ON_SWITCH, Node, Topology
from affinityd.topology.nearness import LOCALITIES, vicinity
from affinityd.topology.rdma import NearNic, nics_of_gpus, verbs_ports

AMBIGUOUS = PlanWarning(
    "ambiguous_index",
    "this machine has GPUs of several models, which CUDA numbers fastest first; an index here "
    "follows the PCI bus: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by their UUIDs",
)


class Caller(NamedTuple):
    """The process that requests a plan, as far as it is known."""

    mask: CpuSet  #: its affinity mask
    #: The CPUs that its cgroup allows, never narrower than the mask; None: unknown.
    cpuset: CpuSet | None = None


class Reply(NamedTuple):
    """A plan with all that its document says about it."""

    node: str
    generation: int
    request: Request
    entries: tuple[str, ...]  #: each rank's GPU, as the request names it, or would have
    asked_ranks: frozenset[int]  #: the requested ranks
    allowed: CpuSet
    source: str  #: of the allowed CPUs: "request", "caller" or "node"
    within: CpuSet | None  #: the caller's cpuset, which bounds them; None: it is not known
    plan: Plan
    nics: Mapping[int, tuple[NearNic, ...]]  #: of each rank, best first
    switch: str = ON  #: of the node and of the caller, together
    #: The nodes of memory near any GPU that the process sees: for memory that all ranks use
    visible_memory: frozenset[int] = frozenset()
    slice: str | None = None  #: what became of a Slurm task's slice: "kept" or "dealt"
    near: CpuSet = frozenset()  #: the allowed CPUs near any of the requested ranks' GPUs

    @property
    def ranks(self) -> tuple[RankPlan, ...]:
        """The requested ranks."""
        return tuple(rank for rank in self.plan.ranks if rank.rank in self.asked_ranks)

    @property
    def warnings(self) -> tuple[PlanWarning, ...]:
        """The warnings that concern them."""
        concerned = {None, *self.asked_ranks}
        return tuple(warning for warning in self.plan.warnings if warning.rank in concerned)

    @property
    def rdma_ports(self) -> tuple[str, ...]:
        """The ranks' ports as libraries of verbs name them."""
        return verbs_ports(nic for rank in self.ranks for nic in self.nics[rank.rank])

    @property
    def cpus(self) -> CpuSet:
        """The union over the ranks."""
        return frozenset().union(*(rank.cpus for rank in self.ranks))

    @property
    def locality(self) -> str:
        """The worst of any rank."""
        return max((rank.locality for rank in self.ranks), key=LOCALITIES.index)


def answer(node: Node, request: Request, caller: Caller | None = None) -> Reply:
    """Plan one request: devices meant, CPUs allowed, plan.

    `caller` is None where it is not known. Raises AffinityError.
    """
    if request.bound is not None:
        raise BoundError(request.bound)
    topology, task = node.topology, request.slurm
    caller = None if request.whose == "node" else caller
    within = caller.cpuset if caller else None
    cpuset, source = _cpuset(request, caller, topology)
    seen = visible_devices(topology, request)
    entries = named(seen, request.gpus)
    job = job_entries(topology, request, entries)
    request = request._replace(job=request.job if job else None)
    if task:
        mask = task.mask or (caller.mask if caller else None)
        if mask and within:
            mask &= within
        planned = plan_task(
            node, request, task, entries, job, mask=mask, cpuset=cpuset, within=within
        )
    else:
        if request.slice is None:
            allowed = node.usable & cpuset
        else:
            allowed = topology.online & request.slice
        if within is not None:
            allowed &= within
        planned = plan_ranks(node, request, entries, job, allowed)
    result, of_gpus = planned.plan, nics_of_gpus(topology)
    is_unclear = is_ambiguous(seen, request.gpus) or (
        request.job is not None and is_ambiguous(all_devices(topology), request.job)
    )
    ambiguous = (AMBIGUOUS,) if is_unclear else ()
    nics = {rank.rank: of_gpus[rank.gpu.key].best(request.nics) for rank in result.ranks}
    memory = {topology.memory_node(device.gpu.numa_node) for _, device in entries}
    gpus = [rank.gpu for rank in result.ranks if rank.rank in planned.asked]
    return Reply(
        node=topology.name,
        generation=node.generation,
        request=request._replace(options=planned.options),
        entries=tuple(name for name, _ in planned.entries),
        asked_ranks=planned.asked,
        allowed=planned.allowed,
        source=source,
        within=within,
        plan=result._replace(warnings=(*result.warnings, *ambiguous, *_far_nics(result, nics))),
        nics=nics,
        switch=node.switch if request.observe is None or node.switch != ON else OBSERVE,
        visible_memory=frozenset(node for node in memory if node is not None),
        near=planned.allowed & vicinity(topology, gpus).cpus,
        slice=planned.slice,
    )


def _far_nics(result: Plan, nics: Mapping[int, tuple[NearNic, ...]]) -> Iterator[PlanWarning]:
    """Yield a warning for each rank whose GPU has no RDMA device on its PCI switch."""
    for rank in result.ranks:
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
        asked, usable = (quote(format_list(cpus)) for cpus in (request.cpuset, caller.cpuset))
        raise UnsatisfiableError(
            f"cpuset: none of {asked} is in the caller's own cpuset, {usable}; name CPUs of that, "
            "or leave cpuset out"
        )
    return cpus, "request"
