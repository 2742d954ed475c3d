"""The target process of a command: its plan, and its GPUs by its environment or the driver."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache

from affinityd import config
from affinityd.audit.model import GpuHolders
from affinityd.audit.sources import HolderSources
from affinityd.client import local_plan
from affinityd.client.process import ProcessContext
from affinityd.cpuset import CpuSet, format_list
from affinityd.discovery.nvml.query import query_processes
from affinityd.errors import AffinityError, BoundError, InvalidRequestError, TargetError
from affinityd.linux.cgroup import mask_of
from affinityd.linux.processes import Stat, cgroups_of, descendants, process_of, stat_of
from affinityd.planner import RankPlan
from affinityd.request.environment import CUDA
from affinityd.request.parameters import parse_query
from affinityd.request.resolve import Caller, Reply
from affinityd.text import quote, whole_number
from affinityd.topology.model import Gpu, Node
from affinityd.topology.nearness import name_gpus, near_nodes


def process_id(text: str) -> int:
    """Parse a PID. Raises ArgumentTypeError."""
    pid = whole_number(text, 2**32)  # larger than any pid
    if not pid:
        raise argparse.ArgumentTypeError(f"{quote(text)} is not a PID; a PID is a number from 1")
    return pid


def living(pid: int) -> Stat:
    """Return the process of a pid. Raises TargetError, which says why it cannot be pinned."""
    if not isinstance(pid, int) or pid < 1:  # a caller of affinityd.verify may pass any value
        raise TargetError(f"pid={pid!r} is not a PID; a PID is a whole number from 1")
    stat = stat_of(pid)
    if stat is None:
        raise TargetError(f"there is no process {pid}")
    process = process_of(pid)
    if process not in (pid, None):
        raise TargetError(f"{pid} is a thread of process {process}; name the process")
    if stat.is_kernel_thread:
        raise TargetError(f"{shown(stat)} is a thread of the kernel, which uses no GPU")
    if stat.is_zombie:
        raise TargetError(
            f"{shown(stat)} has ended; its parent, {stat.parent}, has not waited for it"
        )
    return stat


def shown(stat: Stat) -> str:
    """Return a process's name for messages."""
    return f"process {stat.number} ({stat.name})"


def _known_node() -> Node:
    return local_plan.find_node(config.sockets(config.variables())).node


def this_machine(lack: str) -> Node:
    """Return the machine on which this command runs.

    Raises AffinityError for a replayed machine; `lack`: what such a machine lacks.
    """
    node = _known_node()
    if node.replayed:
        raise InvalidRequestError(
            f"{quote(node.topology.name)} is a replayed machine, which {lack}: "
            "unset the AFFINITYD_ROOT, AFFINITYD_MACHINE or AFFINITYD_SOCKET that names it"
        )
    return node


def _cached_contexts() -> Callable[[Stat], ProcessContext]:
    return cache(ProcessContext.of)


@dataclass(frozen=True)
class ProcessPlanner:
    """Plans for running processes; the constructor reads the node."""

    chosen: Mapping[str, str]  #: parameters of a plan
    #: Whether the plan divides cores as the settings of the site and the process say.
    divides: bool
    node: Node = field(default_factory=_known_node)
    context: Callable[[Stat], ProcessContext] = field(default_factory=_cached_contexts)

    def cpuset(self, stat: Stat) -> CpuSet:
        """Return a process's cpuset, or all online CPUs if that is unknown: a mask may be wrong."""
        return self.context(stat).cpuset or self.node.topology.online

    def _variables(self, process: ProcessContext) -> dict[str, str]:
        """Return the variables of the site and the process that affect its plan."""
        variables = config.variables()
        for name, text in (process.environ or {}).items():
            if text:
                variables[name] = text
        if self.divides:
            return variables
        # Only the requested number of CPUs matters if cores are not divided.
        return {name: text for name, text in variables.items() if name == config.CPUS}

    def plan(self, stat: Stat, gpus: Sequence[Gpu] = ()) -> Reply:
        """Return the plan for a process, on these GPUs. Raises AffinityError."""
        process = self.context(stat)
        cpus = self.cpuset(stat)
        chosen = dict(self.chosen)
        if gpus:
            chosen["gpus"] = ",".join(gpu.pci_bus_id for gpu in gpus)
        if process.environ is None and "gpus" not in chosen:
            why = "it is another user's, or has ended; give --gpus, or run this as root"
            if os.geteuid() == 0:
                why = (
                    "the process has ended, or root may not trace it here (no CAP_SYS_PTRACE, "
                    "another user namespace, a security module); give --gpus"
                )
            raise TargetError(f"the environment of {shown(stat)} cannot be read: {why}")
        parameters = config.plan_parameters(self._variables(process), chosen)
        query = process.query(parameters, cpus)
        request = parse_query(query)
        caller = Caller(mask=cpus, cpuset=cpus)
        task = request.task
        slurm = request.task.slurm
        if slurm is None:
            return local_plan.plan_request(self.node, request, caller)
        mask = mask_of(stat.number)
        slurm = replace(slurm, mask=mask)
        try:
            bound = None
            if slurm.masks:
                bound = slurm.masks[slurm.number % len(slurm.masks)]
            if bound and mask and mask < bound and mask != slurm.pinned:
                listed = format_list(mask)
                raise BoundError(f"its CPUs were narrowed to {listed} by the user")  # noqa: TRY301
            request = request._replace(task=replace(task, slurm=slurm))
            return local_plan.plan_request(self.node, request, caller)
        except BoundError:
            if self.divides:
                raise
        # Whether the process is near does not depend on what bound it.
        task = replace(task, bound=None, slurm=replace(slurm, masks=()))
        request = request._replace(task=task)
        return local_plan.plan_request(self.node, request, caller)

    def doubt(self, stat: Stat) -> str | None:
        """Return why this process may number its GPUs differently from the node; None: it does not.

        If Slurm constrains devices, each task counts its GPUs from 0; no file shows such a limit.
        """
        process = self.context(stat)
        this = ProcessContext.of_self()
        environ = process.environ or {}
        job = environ.get("SLURM_JOB_ID")
        seen = environ.get(CUDA, "").split(",")
        counts_from_0 = seen == [str(number) for number in range(len(seen))]
        is_part = counts_from_0 and len(seen) < len(self.node.topology.gpus)
        is_elsewhere = cgroups_of(process.pid) != cgroups_of(this.pid)
        has_dev = process.devices != this.devices  # a container's own /dev lists its GPUs
        if not job or "granted" in self.chosen or not is_part or not is_elsewhere or has_dev:
            return None
        return (
            f"{shown(stat)} may number its GPUs differently, if Slurm constrains devices: "
            f"run this within its job (srun --overlap --jobid {job}), or give --granted"
        )


@dataclass(frozen=True)
class UsedGpus:
    """The GPUs of processes, by pid."""

    reply: Reply  #: plan of the target process itself
    ranks: Mapping[int, Sequence[RankPlan]]  #: a process without an entry works for its parent
    doubts: Mapping[int, str]  #: pid → why the process may use only some of these GPUs
    remarks: Mapping[int, str]  #: pid → a remark that the driver names other GPUs
    by_driver: bool = False  #: whether the driver, not the environment, named GPUs


def used_gpus(process: Stat, planner: ProcessPlanner, *, is_named: bool) -> UsedGpus:
    """Return the GPUs of a process and its descendants, which may be a launcher's ranks.

    The driver is asked unless the user has named GPUs. The driver is right if the environment names
    other GPUs or all GPUs. Raises AffinityError if there is no plan for the process itself.
    """
    held = GpuHolders()
    if planner.node.replayed:
        held = GpuHolders.unknown_of(planner.node.topology.gpus, "the machine is replayed")
    elif not is_named:
        held = HolderSources(query_processes).held(planner.node.topology)
    using = {holding.pid: {holding.gpu, *holding.beside} for holding in held.holdings}
    of_process = _gpus_of_process(planner, process, using.get(process.number, set()))
    used = {process.number: of_process}
    for stat in descendants(process.number):
        with suppress(AffinityError):
            used[stat.number] = _gpus_of_process(planner, stat, using.get(stat.number, set()))
    ranks = {pid: gpus.ranks for pid, gpus in used.items()}
    remarks = {pid: gpus.remark for pid, gpus in used.items() if gpus.remark}
    by_driver = bool(remarks)
    unclear = set()
    for pid, gpus in used.items():
        # GPUs of one place are near the same CPUs, so it does not matter which of them is used.
        places = {near_nodes(planner.node.topology, gpu) for gpu in gpus_of(gpus.reply.ranks)}
        if is_named or gpus.is_named or len(places) <= 1:
            continue
        if pid in using:
            by_driver = True
        else:
            unclear.add(pid)
    doubts = {}
    if ranks.keys() <= unclear:  # else these only start or help processes that use GPUs
        doubts = {pid: _doubt(planner, ranks[pid], held) for pid in unclear}
    else:
        for pid in unclear - {process.number}:
            del ranks[pid]
    return UsedGpus(of_process.reply, ranks, doubts, remarks, by_driver=by_driver)


@dataclass(frozen=True)
class FoundGpus:
    """The plan of a process on the GPUs that it uses."""

    reply: Reply
    ranks: Sequence[RankPlan]
    is_named: bool  #: whether its environment names them
    remark: str = ""  #: remark that its environment names other GPUs


def _gpus_of_process(
    planner: ProcessPlanner, stat: Stat, keys: Collection[tuple[str, int]]
) -> FoundGpus:
    """Return the GPUs of a process, by its environment or by the driver, which names `keys`.

    Raises AffinityError if neither the environment nor the driver names a GPU.
    """
    planned: Sequence[RankPlan] = ()
    is_named = False
    try:
        reply = planner.plan(stat)
        planned = reply.ranks
        is_named = reply.request.task.visible is not None
        ranks = [rank for rank in planned if rank.gpu.key in keys]
        if ranks or not keys:
            return FoundGpus(reply, ranks or planned, is_named)
    except AffinityError:
        if not keys:
            raise
    reply = planner.plan(stat, [gpu for gpu in planner.node.topology.gpus if gpu.key in keys])
    by_driver = _names(planner, reply.ranks)
    remark = f"its environment leaves open which GPU the process uses; the driver says {by_driver}"
    if planned:
        remark = (
            f"its environment names {_names(planner, planned)}, but the driver says {by_driver}: "
            "the driver is right"
        )
    return FoundGpus(reply, reply.ranks, is_named, remark)


def _doubt(planner: ProcessPlanner, ranks: Sequence[RankPlan], held: GpuHolders) -> str:
    """Return why a process that may use any of these GPUs is not judged."""
    why = "the driver says that the process uses none of them now"
    if held.unknown:
        why = f"it is not known which of them is used ({next(iter(held.unknown.values()))})"
    return (
        f"its environment names none of {_names(planner, ranks)}, and {why}: the process "
        "is not judged, since CPUs near any of them would count as near; name its GPU: --gpus N"
    )


def _names(planner: ProcessPlanner, ranks: Sequence[RankPlan]) -> str:
    return name_gpus(gpus_of(ranks), with_vendor=planner.node.topology.has_several_vendors)


def gpus_of(ranks: Sequence[RankPlan]) -> tuple[Gpu, ...]:
    """Return the GPUs of ranks, each once."""
    return tuple({rank.gpu.key: rank.gpu for rank in ranks}.values())
