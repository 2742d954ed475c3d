"""From a request to its reply: the GPUs it refers to, the CPUs it may use, and the plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from affinityd.config import OBSERVE, ON
from affinityd.cpuset import CpuSet, format_list
from affinityd.errors import BoundError, UnsatisfiableError
from affinityd.planner import Plan, PlanWarning, RankPlan
from affinityd.request.devices import Doubt, find_entries
from affinityd.request.parameters import Request
from affinityd.request.process_plan import ProcessPlan
from affinityd.request.ranks import Resolved, job_entries, plan_chosen, plan_ranks
from affinityd.request.slurm_task import plan_task
from affinityd.request.task import AMBIGUOUS, check_gpus, choose_visible, gpus_seen
from affinityd.text import quote
from affinityd.topology.model import ON_SWITCH, Node, Topology
from affinityd.topology.nearness import LOCALITIES, vicinity
from affinityd.topology.rdma import NearNic, nics_of_gpus, verbs_ports


class Caller(NamedTuple):
    """The process that requests a plan, as far as known."""

    mask: CpuSet  #: its affinity mask
    #: The CPUs that its cgroup allows, never narrower than the mask; None: unknown.
    cpuset: CpuSet | None = None


class Reply(NamedTuple):
    """A plan, with all that the plan's document says."""

    node: str
    generation: int
    request: Request
    entries: tuple[str, ...]  #: each rank's GPU, by a name that requests use
    asked_ranks: frozenset[int]  #: the requested ranks
    allowed: CpuSet
    source: str  #: source of the allowed CPUs: "request", "caller" or "node"
    within: CpuSet | None  #: the caller's cpuset, which contains the allowed CPUs; None: unknown
    plan: Plan
    nics: Mapping[tuple[str, int], tuple[NearNic, ...]]  #: near NICs of each rank's GPU, best first
    replayed: bool  #: the node is not the machine on which this runs
    switch: str = ON  #: the stricter switch of node and caller
    #: The nodes whose memory is near any GPU that the process sees: for memory that all ranks use
    visible_memory: frozenset[int] = frozenset()
    doubt: Doubt | None = None  #: why the GPUs may be others; None: they are certain
    #: Rank → the variables by which it sees only the GPUs chosen for it
    visible: Mapping[int, Mapping[str, str]] = {}
    near_cpus: CpuSet = frozenset()  #: the allowed CPUs near any of the requested ranks' GPUs

    @property
    def ranks(self) -> tuple[RankPlan, ...]:
        """The requested ranks."""
        return tuple(rank for rank in self.plan.ranks if rank.rank in self.asked_ranks)

    @property
    def warnings(self) -> tuple[PlanWarning, ...]:
        """The warnings about the requested ranks, or about the whole plan."""
        concerned = {None, *self.asked_ranks}
        return tuple(warning for warning in self.plan.warnings if warning.rank in concerned)

    @property
    def rdma(self) -> tuple[str, ...]:
        """Port names of the ranks' NICs, as verbs libraries write them."""
        nics: list[NearNic] = []
        for rank in self.ranks:
            nics += self.nics[rank.gpu.key]
        return verbs_ports(nics)

    @property
    def cpus(self) -> CpuSet:
        """The CPUs of all ranks together."""
        return frozenset().union(*(rank.cpus for rank in self.ranks))

    @property
    def locality(self) -> str:
        """The worst locality of the ranks; unknown if the place of any GPU is unknown."""
        return max((rank.locality for rank in self.ranks), key=LOCALITIES.index)


def process_plan(reply: Reply) -> ProcessPlan:
    """Return the part of the plan that a process needs."""
    ranks = reply.ranks
    visible = list(reply.visible.values())
    codes = {warning.code for warning in reply.warnings}
    indices = frozenset(rank.gpu.index for rank in ranks)
    nodes = {rank.home_node for rank in ranks} - {None}
    memory_nodes = {rank.memory_node for rank in ranks} - {None}
    return ProcessPlan(
        switch=reply.switch,
        cpus=reply.cpus,
        locality=reply.locality,
        allowed=reply.allowed,
        gpus=frozenset() if AMBIGUOUS in codes else indices,
        nodes=frozenset(nodes),
        memory_nodes=frozenset(memory_nodes),
        visible_memory=reply.visible_memory,
        threads=sum(rank.threads for rank in ranks),
        rdma=reply.rdma,
        near=reply.near_cpus if any(rank.widening for rank in ranks) else None,
        warning_codes=tuple(sorted(codes)),
        visible=visible[0] if len(visible) == 1 else {},
        replayed=reply.replayed,
    )


def answer(node: Node, request: Request, caller: Caller | None = None) -> Reply:
    """Plan one request. Raises AffinityError."""
    return check_gpus_of(node, plan_reply(node, request, caller))


def check_gpus_of(node: Node, reply: Reply) -> Reply:
    """Return a reply, with a warning if its GPUs are doubtful. Raises UnsatisfiableError."""
    gpus = [rank.gpu for rank in reply.ranks]
    warning = check_gpus(node.topology, reply.request.task, reply.doubt, gpus)
    if warning is None:
        return reply
    return reply._replace(plan=reply.plan._replace(warnings=(*reply.plan.warnings, warning)))


def plan_reply(node: Node, request: Request, caller: Caller | None = None) -> Reply:
    """Plan one request as `answer` does, but do not check whether its GPUs are certain."""
    task = request.task
    if task.bound is not None and not request.choose:
        raise BoundError(task.bound)
    topology = node.topology
    if request.whose == "node":
        caller = None
    within = caller.cpuset if caller else None
    cpuset, source = _cpuset(task.cpuset, caller, topology)
    task = choose_visible(topology, task)
    seen = gpus_seen(topology, task)
    entries = find_entries(seen, task.gpus)
    mask = task.cpuset
    if task.slurm:
        mask = task.slurm.mask or (caller.mask if caller else None)
    if mask and within:
        mask &= within
    allowed = node.usable & cpuset if task.slice is None else topology.online & task.slice
    if within is not None:
        allowed &= within
    job = job_entries(topology, task, entries)
    resolved = Resolved(node, request, task, seen, entries, job, cpuset, mask, within, allowed)
    planned = plan_chosen(resolved) if request.choose else None
    if planned is None and task.bound is not None:
        raise BoundError(task.bound)
    if planned is None and task.slurm:
        planned = plan_task(resolved, task.slurm)
    elif planned is None:
        planned = plan_ranks(resolved)
    result = planned.plan
    of_gpus = nics_of_gpus(topology)
    warnings = []
    if seen.cut and task.gpus is None:
        warnings.append(PlanWarning("visible_cut", seen.cut))
    gpus = [rank.gpu for rank in result.ranks if rank.rank in planned.asked]
    nics = {rank.gpu.key: of_gpus[rank.gpu.key].best(request.nics) for rank in result.ranks}
    memory = {topology.memory_node(device.gpu.numa_node) for _, device in entries}
    return Reply(
        node=topology.name,
        generation=node.generation,
        request=request._replace(
            task=replace(task, job=task.job if job else None), options=planned.options
        ),
        entries=tuple(name for name, _ in planned.entries),
        asked_ranks=planned.asked,
        allowed=planned.allowed,
        source=source,
        within=within,
        plan=result._replace(warnings=(*result.warnings, *warnings, *_far_nics(result, nics))),
        nics=nics,
        visible=planned.visible,
        replayed=node.replayed,
        switch=node.switch if request.observe is None or node.switch != ON else OBSERVE,
        visible_memory=frozenset(node for node in memory if node is not None),
        doubt=seen.doubt,
        near_cpus=planned.allowed & vicinity(topology, gpus).cpus,
    )


def _far_nics(
    result: Plan, nics: Mapping[tuple[str, int], tuple[NearNic, ...]]
) -> Iterator[PlanWarning]:
    """Yield a warning for each rank whose GPU has no RDMA device on its PCI switch."""
    for rank in result.ranks:
        for best in nics[rank.gpu.key][:1]:
            if best.link not in ON_SWITCH:
                yield PlanWarning(
                    "no_local_nic",
                    f"rank {rank.rank}: no RDMA device is on the PCI switch of GPU "
                    f"{rank.gpu.index}; {best.port.device} is nearest ({best.link})",
                    rank.rank,
                )


def _cpuset(stated: CpuSet | None, caller: Caller | None, topology: Topology) -> tuple[CpuSet, str]:
    """Return the CPUs to plan on, and their source. Raises UnsatisfiableError if there are none."""
    if stated is None:
        return (caller.mask, "caller") if caller else (topology.online, "node")
    if caller is None or caller.cpuset is None:
        return stated, "request"
    cpus = stated & caller.cpuset
    if not cpus:
        asked = quote(format_list(stated))
        usable = quote(format_list(caller.cpuset))
        raise UnsatisfiableError(
            f"cpuset: none of {asked} is in the caller's own cpuset, {usable}; name CPUs of that, "
            "or leave cpuset out"
        )
    return cpus, "request"
