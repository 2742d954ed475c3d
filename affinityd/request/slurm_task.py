"""The plan of a task of a Slurm step, by facts that the task itself has. Pure.

The rule is in docs/slurm.md, "What each task gets". A task knows its GPUs, its number, how many
tasks the step has on the node, and the CPUs that Slurm bound each of these tasks to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from affinityd.cpuset import CpuSet, format_list
from affinityd.errors import BoundError, UnsatisfiableError
from affinityd.planner import Options, Plan, PlanWarning
from affinityd.planner.domains import nearest_nodes, usable_cores
from affinityd.planner.modes import MODES
from affinityd.planner.planner import plan
from affinityd.planner.slices import deal
from affinityd.request.devices import Entry, all_devices, find_entries
from affinityd.request.ranks import (
    GpusOfRanks,
    Planned,
    Resolved,
    add_warnings,
    check_step_gpus,
    count_asked_cpus,
    deal_gpus,
    demand_of,
    gpus_of,
    has_bound_gpus,
    places_of,
    plan_bound,
    repeat_each,
)
from affinityd.request.task_cpus import SlurmTask
from affinityd.text import count
from affinityd.topology.model import cpus_of
from affinityd.topology.nearness import vicinity

#: What to ask Slurm for if a slice has no near CPU.
REMEDY = "--gres-flags=enforce-binding with Cores= in gres.conf, or --gpu-bind=closest"

#: All tasks of a step ask at once for the same result, which is the main cost of 64 requests.
_deal_once = lru_cache(8)(deal)


@dataclass(frozen=True)
class StepTask:
    """A task of a step, its GPUs, and the GPUs of the tasks with which it divides CPUs."""

    resolved: Resolved
    task: SlurmTask
    dealt: GpusOfRanks  #: the GPUs of each task, as far as this task knows
    job: tuple[Entry, ...]  #: the GPUs of its job; (): not known, or not all are here
    is_bound: bool  #: whether Slurm chose its GPUs; if not, all tasks see the same GPUs

    @property
    def own(self) -> tuple[Entry, ...]:
        """The task's own GPUs."""
        return self.dealt[self.task.number]

    @property
    def ranks(self) -> frozenset[int]:
        """The numbers of its own GPUs' ranks in the plan."""
        return frozenset(range(len(self.own)))


def plan_task(resolved: Resolved, task: SlurmTask) -> Planned:
    """Plan a task of a step. Raises AffinityError; BoundError where the user set the mask."""
    node = resolved.node
    visible = resolved.entries
    within = resolved.within
    is_bound = has_bound_gpus(task, visible)
    dealt = (visible,) * task.tasks if is_bound else deal_gpus(resolved, task.tasks)
    step = StepTask(resolved, task, dealt, _job_gpus(resolved, task), is_bound)
    warnings = []
    if not (resolved.task.gpu_order or is_bound or task.tasks == 1 or len(visible) == 1):
        names = format_list(gpu.index for gpu in gpus_of(step.own))
        message = (
            f"all tasks of the step see the same {len(visible)} GPUs; task {task.number} is "
            f"assumed to use GPU {names}"
        )
        warnings.append(PlanWarning("assumed_gpu", message))
    slices = _slices_of(resolved, task)
    if slices:
        planned = _plan_in_slice(step, slices)
        idle = _idle_cpus(resolved, slices)
        if idle:
            message = f"{count(len(idle), 'CPU')} of this step ({format_list(idle)}) have no task"
            warnings.append(PlanWarning("idle_cpus", f"{message}: give -c"))
    else:
        cpus = resolved.cpuset
        masks = task.masks
        if masks and cpus == masks[task.number % len(masks)] & node.topology.online:
            cpus = frozenset().union(*masks)  # the CPUs of all tasks
        allowed = node.usable & cpus
        if within is not None:
            allowed &= within
        planned = _plan_without_slice(step, allowed)
    return add_warnings(planned, *warnings)


def _job_gpus(resolved: Resolved, task: SlurmTask) -> tuple[Entry, ...]:
    job = resolved.job
    if not job:
        check_step_gpus(task, resolved.entries)
    if len(job) < (task.step_gpus or 0):  # a prolog lists GPUs of one type only
        job = ()
    everything = all_devices(resolved.node.topology)
    if not job and task.step_gpus == len(everything.by_index):  # all GPUs of the node
        job = find_entries(everything, None)
    return job


def _slices_of(resolved: Resolved, task: SlurmTask) -> tuple[CpuSet, ...]:
    """Return the slice of each task; (): no task has one. Raises BoundError for a user's mask."""
    online = resolved.node.topology.online
    within = resolved.within
    if task.tasks == 1 or len(task.masks) <= 1:  # one mask for several tasks is no slice
        return ()
    if len(task.masks) < task.tasks:
        raise BoundError(
            f"SLURM_CPU_BIND_LIST has {len(task.masks)} masks for {task.tasks} tasks; "
            "one mask for each task is expected"
        )
    slices = tuple(cpus & online for cpus in task.masks[: task.tasks])
    own = slices[task.number]
    pinned = task.pinned & online
    mask = own if resolved.mask is None else resolved.mask & online
    if mask not in {own, pinned}:
        if mask < own or mask < pinned:
            raise BoundError(
                f"its CPUs were narrowed to {format_list(resolved.mask or ())} by the user"
            )
        return ()  # the list belongs to an outer step
    together = frozenset[int]().union(*slices)
    if sum(len(cpus) for cpus in slices) > len(together):
        return ()
    if within is not None and not together <= within:
        beyond = format_list(together - within)
        raise BoundError(f"SLURM_CPU_BIND_LIST has CPUs {beyond}, which the task may not use")
    return slices


def _plan_in_slice(step: StepTask, slices: tuple[CpuSet, ...]) -> Planned:
    """Plan a task on its slice, or on the CPUs that it has after tasks have exchanged some."""
    task = step.task
    seen = step.resolved.seen
    node = step.resolved.node
    indices = [gpu.index for gpu in gpus_of(step.resolved.entries)]
    # whether the indices are the step's as Slurm lists them, and not a user's choice
    are_of_step = len(indices) == task.step_gpus and indices == sorted(indices)
    own = slices[task.number]
    cpus = _dealt_before(step, slices)
    if cpus is None and seen.doubt is None and not step.is_bound and are_of_step:
        places = [vicinity(node.topology, gpus_of(entries)) for entries in step.dealt]
        near = tuple(place.cpus if place.nodes else None for place in places)
        cpus = _deal_once(slices, near, node.topology.cores, node.reserved)[task.number]
    if cpus is None:
        cpus = own
    because = f"Slurm bound the task to CPUs {format_list(own)}"
    if cpus != own:
        because += "; far CPUs were exchanged with other tasks of the step"
    return plan_bound(step.resolved, step.own, step.ranks, cpus, because, remedy=REMEDY)


def _dealt_before(step: StepTask, slices: tuple[CpuSet, ...]) -> CpuSet | None:
    """Return the CPUs that a pinned task was dealt before; None: no deal pinned it."""
    task = step.task
    mask = step.resolved.mask
    online = step.resolved.node.topology.online
    allowed = task.allowed & online
    is_pinned = mask is not None and mask & online == task.pinned & online
    is_of_step = bool(allowed) and allowed <= frozenset[int]().union(*slices)
    return allowed if is_pinned and is_of_step and task.pinned <= task.allowed else None


def _idle_cpus(resolved: Resolved, slices: Sequence[CpuSet]) -> CpuSet:
    """Return the CPUs of those cores of the step that no task has."""
    node = resolved.node
    within = resolved.within
    online = node.topology.online
    step_cpus = resolved.task.cpus.of_job if resolved.task.cpus else None
    if within is None or (within >= online and step_cpus != len(online)):
        return frozenset()  # the cpuset does not tell which CPUs are the step's
    taken = frozenset[int]().union(*slices)
    free = cpus_of(core for core in node.topology.cores if taken.isdisjoint(core.cpus))
    return free & within & node.usable


def _plan_without_slice(step: StepTask, allowed: CpuSet) -> Planned:
    """Plan a task on CPUs that it shares with other tasks, unless its mask is near already."""
    task = step.task
    node = step.resolved.node
    mask = step.resolved.mask
    options = step.resolved.request.options
    mode = MODES[options.mode]
    has_siblings = task.tasks > 1
    near = vicinity(node.topology, gpus_of(step.own)).cpus
    if mode.shares and mask and mask <= near and mask <= node.usable:
        because = f"its mask, CPUs {format_list(mask)}, is near as it is"
        planned = plan_bound(step.resolved, step.own, step.ranks, mask, because)
        return planned._replace(options=options)  # the mask stays, and the requested number too
    if options.cpus is None:
        asked = step.resolved.task.cpus
        cpus = count_asked_cpus(node, step.resolved.task, allowed, task.tasks)
        if cpus and has_siblings and (asked is None or asked.cpus is None):
            cpus = 1  # a common mask is no request; without -c Slurm means one CPU
        options = replace(options, cpus=cpus)
    if mode.shares_node and has_siblings and allowed:
        in_block = _in_own_block(step, options, allowed)
        if in_block:
            return in_block
    if mode.by_rank and has_siblings:
        entries = tuple(step.own[rank % len(step.own)] for rank in range(task.tasks))
        result = plan(node.topology, demand_of(node, entries, allowed, options))
        return Planned(entries, frozenset((task.number,)), options, result, allowed)
    result = _beside_neighbors(step, options, allowed)
    planned = Planned(step.own, step.ranks, options, result, allowed)
    if mode.unique and has_siblings:
        message = (
            f"mode {options.mode} has too few CPUs near this task's GPUs for the number that was "
            "asked for: the task has the CPUs of mode node, which other tasks may share"
        )
        return add_warnings(planned, PlanWarning("not_unique", message))
    return planned


def _beside_neighbors(step: StepTask, options: Options, allowed: CpuSet) -> Plan:
    """Plan a task on the CPUs near its GPUs, which the tasks of one home node divide."""
    node = step.resolved.node
    topology = step.resolved.node.topology
    if MODES[options.mode].unique:
        options = replace(options, mode="all")  # the mode that gives the whole scope
    demand = demand_of(node, step.own, allowed, options)
    if not allowed:
        return plan(topology, demand)
    # The step's GPUs, which all tasks see; but if Slurm bound GPUs, all of the job's.
    divided = (step.job if step.is_bound else ()) or step.resolved.entries
    nearest = nearest_nodes(topology, gpus_of(divided), allowed)
    homes = tuple(nodes[0] for nodes in nearest)
    own = tuple(homes[places_of(entry, divided)[0]] for entry in step.own)
    demand = demand._replace(homes=own)
    if options.cpus is None:
        return plan(topology, demand)
    home_of = dict(zip(divided, homes, strict=True))
    together = {home: options.cpus * _tasks_at(step, home, home_of) for home in homes}
    of_all = demand_of(node, divided, allowed, replace(options, strict=False))
    of_all = of_all._replace(homes=homes, together=together)
    others: CpuSet = frozenset()
    for rank in plan(topology, of_all).ranks:
        if rank.home_node not in own:
            others |= rank.cpus
    return plan(topology, demand._replace(together=together, others=others))


def _tasks_at(step: StepTask, home: int | None, home_of: Mapping[Entry, int | None]) -> int:
    """Return how many tasks have GPUs on a home node, by the home nodes of all GPUs."""
    tasks, homes = step.task.tasks, list(home_of.values())
    if step.is_bound:  # the step's part of the job's GPUs may all be on this home node
        of_step = min(step.task.step_gpus or len(homes), len(homes))
        return min(tasks, -(-tasks * homes.count(home) // of_step))
    part = -(-tasks * homes.count(home) // len(homes))
    at_home = 0
    for of_task in step.dealt:
        at_home += home in [home_of[entry] for entry in of_task]
    return max(part, at_home)


def _in_own_block(step: StepTask, options: Options, allowed: CpuSet) -> Planned | None:
    """Return the plan of all ranks that divide the CPUs; the task has the blocks of its GPUs.

    None: such a block is far, shared with other tasks, or smaller than what was asked for.
    """
    task = step.task
    node = step.resolved.node
    own = step.own
    job = step.job
    dividing = replace(options, cpus=None)
    if not job:
        job = own
        dividing = replace(dividing, share="node")
    places = tuple(places_of(entry, job)[0] for entry in own)
    if step.is_bound:  # tasks of adjacent numbers share a GPU: --ntasks-per-gpu
        sharing = -(-task.tasks * len(own) // (task.step_gpus or 1))
        slot = task.number % sharing
    else:
        sharing = max(step.dealt.count(of_task) for of_task in step.dealt)
        slot = step.dealt[: task.number].count(own)
    knows_step = step.is_bound and len(step.job) == task.step_gpus
    if sharing > 1 and knows_step and places != (task.number // sharing,):
        return None  # the tasks that share the GPU have no adjacent numbers
    entries = repeat_each(job, sharing)
    ranks = frozenset(place * sharing + slot for place in places)
    try:
        result = plan(node.topology, demand_of(node, entries, allowed, dividing))
    except UnsatisfiableError:
        return None
    asking = [rank for rank in result.ranks if rank.rank in ranks]
    is_far = any(rank.locality == "remote" for rank in asking)
    is_shared = dividing.share == "node" != result.share
    cores = sum(rank.physical_cores for rank in asking)
    if is_far or is_shared or cores < _least_cores(step, options, allowed):
        return None
    return Planned(entries, ranks, options, result, allowed)


def _least_cores(step: StepTask, options: Options, allowed: CpuSet) -> int:
    """Return the fewest cores of a block: the requested number, or fewer if the user says so."""
    mode = MODES[options.mode]
    wants_fewer = not (mode.counts and mode.widens) or options.max_physical_cores is not None
    if wants_fewer or options.cpus is None:
        return 1
    cores = usable_cores(step.resolved.node.topology.cores, allowed)
    return max(1, options.cpus // max(len(core.cpus) for core in cores))
