"""The plan of a task of a Slurm step, by the task's own facts alone. Pure.

The rule is in docs/slurm.md, "What each task gets". A task knows its GPUs, its number, how many
tasks the step has on the node, and the CPUs that Slurm bound each of them to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from affinityd.cpuset import CpuSet, format_list
from affinityd.errors import BoundError, UnsatisfiableError
from affinityd.planner import Options, Plan, PlanWarning
from affinityd.planner.domains import nearest_nodes, usable
from affinityd.planner.modes import MODES
from affinityd.planner.slices import deal, plan_within
from affinityd.request.devices import Entry, VisibleDevices, all_devices, named
from affinityd.request.parameters import Request
from affinityd.request.ranks import (
    GpusOfRanks,
    Planned,
    asked_cpus,
    check_step_gpus,
    deal_gpus,
    gpus_of,
    has_bound_gpus,
    places_of,
    plan_entries,
)
from affinityd.request.task import SlurmTask
from affinityd.text import count
from affinityd.topology.model import Node, cpus_of
from affinityd.topology.nearness import vicinity

#: What became of a task's slice: it stays, or CPUs changed hands.
KEPT = "kept"
DEALT = "dealt"
#: What to ask Slurm for where a slice has no near CPU.
REMEDY = "--gres-flags=enforce-binding with Cores= in gres.conf, or --gpu-bind=closest"


#: All tasks of a step ask at once, and the same is dealt: for 64 tasks that is most of their time.
_deal_once = lru_cache(8)(deal)


@dataclass(frozen=True)
class TaskGpus:
    """The GPUs of a task, and those that it is planned among."""

    visible: tuple[Entry, ...]
    own: tuple[Entry, ...]
    dealt: GpusOfRanks  #: of each task
    job: tuple[Entry, ...]  #: of its job; (): no note has them, or these are not here
    places: tuple[int, ...]  #: of its own among the job's
    is_bound: bool  #: Slurm chose its own; else all tasks of the step see the same ones


def plan_task(
    node: Node,
    request: Request,
    task: SlurmTask,
    visible: tuple[Entry, ...],
    job: tuple[Entry, ...],
    *,
    mask: CpuSet | None,
    cpuset: CpuSet,
    within: CpuSet | None,
    seen: VisibleDevices,
) -> Planned:
    """Plan a task of a step by its mask, and by the devices that it sees and its job's.

    `cpuset` are the CPUs that a task without a slice is planned on, `within` those of its cgroup.
    None: not known. Raises AffinityError; BoundError where the user has narrowed the mask.
    """
    if has_bound_gpus(task, visible):
        dealt: GpusOfRanks = (visible,) * task.tasks
    else:
        dealt = deal_gpus(request.task, seen, visible, task.tasks)
    gpus = _task_gpus(node, task, visible, job, dealt)
    assumed = [] if request.task.gpu_order else _assumed_gpu(task, gpus)
    slices = _slices_of(task, node.topology.online, mask, within)
    if slices:
        indices = [device.gpu.index for _, device in visible]
        # Those of the step as Slurm lists them, and no list of the user
        are_of_step = len(indices) == task.step_gpus and indices == sorted(indices)
        deals = seen.doubt is None and not gpus.is_bound and are_of_step
        planned = _plan_in_slice(
            node, request.options, task, gpus, slices=slices, mask=mask, deals=deals
        )
        step_cpus = request.task.cpus.of_job if request.task.cpus else None
        warnings = [*assumed, *_idle_cpus(node, step_cpus, slices, within)]
    else:
        masks = task.masks
        if masks and cpuset == masks[task.number % len(masks)] & node.topology.online:
            cpuset = frozenset().union(*masks)  # of all tasks
        allowed = node.usable & (cpuset if within is None else cpuset & within)
        planned = _plan_without_slice(node, request, task, gpus, mask=mask, allowed=allowed)
        warnings = assumed
    plan = planned.plan
    return planned._replace(plan=plan._replace(warnings=(*plan.warnings, *warnings)))


def _task_gpus(
    node: Node,
    task: SlurmTask,
    visible: tuple[Entry, ...],
    job: tuple[Entry, ...],
    dealt: GpusOfRanks,
) -> TaskGpus:
    """Return a task's GPUs: those that Slurm bound to it, else its part of those that all see.

    Raises UnsatisfiableError where it sees more than the step has.
    """
    own = dealt[task.number]
    if not job:
        check_step_gpus(task, visible)
    everything = all_devices(node.topology)
    if len(job) < (task.step_gpus or 0):  # of several types Slurm tells a prolog the last alone
        job = ()
    if not job and task.step_gpus == len(everything.by_index):  # needs no note
        job = named(everything, None)
    places = tuple(places_of(entry, job)[0] for entry in own) if job else ()
    return TaskGpus(visible, own, dealt, job, places, has_bound_gpus(task, visible))


def _slices_of(
    task: SlurmTask, online: CpuSet, mask: CpuSet | None, within: CpuSet | None
) -> tuple[CpuSet, ...]:
    """Return the slice of each task; (): they have none.

    It is the rule which tasks have slices; task.py has left those that the user bound, and those of
    which it is not known how many there are. Raises BoundError where the user has narrowed the
    mask, or where the list cannot be the step's.
    """
    if task.tasks == 1 or len(task.masks) <= 1:  # one mask for several tasks is no slice
        return ()
    if len(task.masks) < task.tasks:
        raise BoundError(
            f"SLURM_CPU_BIND_LIST has {len(task.masks)} masks for {task.tasks} tasks; "
            "it would have one for each"
        )
    slices = tuple(cpus & online for cpus in task.masks[: task.tasks])
    own, pinned = slices[task.number], task.pinned & online
    if mask is not None and mask & online not in {own, pinned}:
        if mask & online < own or mask & online < pinned:
            raise BoundError(f"its CPUs were narrowed to {format_list(mask)} by the user")
        return ()  # the list is that of an outer step
    together = frozenset[int]().union(*slices)
    if sum(len(cpus) for cpus in slices) > len(together):
        return ()
    if within is not None and not together <= within:
        beyond = format_list(together - within)
        raise BoundError(f"SLURM_CPU_BIND_LIST has CPUs {beyond}, which the task may not use")
    return slices


def _plan_in_slice(
    node: Node,
    options: Options,
    task: SlurmTask,
    gpus: TaskGpus,
    *,
    slices: tuple[CpuSet, ...],
    mask: CpuSet | None,
    deals: bool,
) -> Planned:
    """Plan a task within its slice, or within what the tasks of the step exchange for it.

    `deals`: they exchange CPUs, all of them or none.
    """
    topology, options = node.topology, replace(options, cpus=None)
    cpus = own = slices[task.number]
    dealt_before = _dealt_before(task, slices, mask, topology.online)
    if dealt_before is not None:
        cpus = dealt_before
    elif deals:
        places = [vicinity(topology, gpus_of(of_task)) for of_task in gpus.dealt]
        near = tuple(place.cpus if place.nodes else None for place in places)
        cpus = _deal_once(slices, near, topology.cores, node.reserved)[task.number]
    because = f"Slurm bound the task to CPUs {format_list(own)}"
    if cpus != own:
        because += "; far ones were exchanged with other tasks of the step"
    plan = plan_within(topology, gpus_of(gpus.own), cpus, options, because=because, remedy=REMEDY)
    ranks = frozenset(range(len(gpus.own)))
    return Planned(gpus.own, ranks, options, plan, cpus, KEPT if cpus == own else DEALT)


def _dealt_before(
    task: SlurmTask, slices: tuple[CpuSet, ...], mask: CpuSet | None, online: CpuSet
) -> CpuSet | None:
    """Return what a task has that was pinned before; None: it was not.

    It does not depend on the GPUs that a script in the task has chosen since, nor on CPUs that have
    gone offline: the other tasks keep what they were dealt, too.
    """
    allowed = task.allowed & online
    is_pinned = mask is not None and mask & online == task.pinned & online
    is_of_step = bool(allowed) and allowed <= frozenset[int]().union(*slices)
    if is_pinned and is_of_step and task.pinned <= task.allowed:
        return allowed
    return None


def _idle_cpus(
    node: Node, step_cpus: int | None, slices: Sequence[CpuSet], within: CpuSet | None
) -> list[PlanWarning]:
    """Warn of the step's cores of which no task has a CPU; `step_cpus`: how many CPUs it has."""
    online = node.topology.online
    if within is None or (within >= online and step_cpus != len(online)):
        return []  # the cpuset does not say which CPUs are the step's
    taken = frozenset[int]().union(*slices)
    free = cpus_of(core for core in node.topology.cores if taken.isdisjoint(core.cpus))
    idle = free & within & node.usable
    if not idle:
        return []
    cpus = count(len(idle), "CPU")
    message = f"{cpus} of this step ({format_list(idle)}) have no task: give -c"
    return [PlanWarning("idle_cpus", message)]


def _assumed_gpu(task: SlurmTask, gpus: TaskGpus) -> list[PlanWarning]:
    """Warn where a task's GPUs are not known but follow from its number."""
    if gpus.is_bound or task.tasks == 1 or len(gpus.visible) == 1:
        return []
    names = format_list(gpu.index for gpu in gpus_of(gpus.own))
    message = (
        f"all tasks of the step see the same {len(gpus.visible)} GPUs; task {task.number} is "
        f"assumed to use GPU {names}"
    )
    return [PlanWarning("assumed_gpu", message)]


def _plan_without_slice(
    node: Node,
    request: Request,
    task: SlurmTask,
    gpus: TaskGpus,
    *,
    mask: CpuSet | None,
    allowed: CpuSet,
) -> Planned:
    """Plan a task on these CPUs, which are also other tasks', unless its mask is near as it is."""
    options, mode = request.options, MODES[request.options.mode]
    has_siblings = task.tasks > 1
    near = vicinity(node.topology, gpus_of(gpus.own))
    if mode.shares and mask and mask <= near.cpus and mask <= node.usable:
        because = f"its mask, CPUs {format_list(mask)}, is near as it is"
        plan = plan_within(node.topology, gpus_of(gpus.own), mask, options, because=because)
        return Planned(gpus.own, frozenset(range(len(gpus.own))), options, plan, mask)
    if options.cpus is None:
        asked = request.task.cpus
        cpus = asked_cpus(node, request.task, allowed, task.tasks)
        if cpus and has_siblings and (asked is None or asked.cpus is None):
            cpus = 1  # a mask that tasks share is no demand: without -c Slurm gives each one CPU
        options = replace(options, cpus=cpus)
    if mode.shares_node and has_siblings and allowed:
        in_block = _in_own_block(node, task, options, gpus, allowed)
        if in_block:
            return in_block
    if mode.by_rank and has_siblings:
        entries = tuple(gpus.own[rank % len(gpus.own)] for rank in range(task.tasks))
        result = plan_entries(node, entries, allowed, options)
        return Planned(entries, frozenset((task.number,)), options, result, allowed)
    result = _beside_neighbors(node, task, options, gpus, allowed)
    if mode.unique and has_siblings:
        message = (
            f"mode {options.mode} has too few CPUs near this task's GPUs to give it as many as it "
            "asked for: it has those of mode node, which other tasks may share"
        )
        result = result._replace(warnings=(*result.warnings, PlanWarning("not_unique", message)))
    return Planned(gpus.own, frozenset(range(len(gpus.own))), options, result, allowed)


def _beside_neighbors(
    node: Node, task: SlurmTask, options: Options, gpus: TaskGpus, allowed: CpuSet
) -> Plan:
    """Plan a task on the CPUs near its GPUs, which the tasks of one home node share.

    They ask together for the CPUs of so many of the step's tasks as the node has of the job's GPUs.
    """
    if MODES[options.mode].unique:
        options = replace(options, mode="all")  # of the scope
    if not allowed:
        return plan_entries(node, gpus.own, allowed, options)
    # All tasks see the step's GPUs, unless Slurm bound them: then the step's are some of the job's.
    divided = (gpus.job if gpus.is_bound else ()) or gpus.visible
    nearest = nearest_nodes(node.topology, gpus_of(divided), allowed)
    homes = tuple(nodes[0] for nodes in nearest)
    own = tuple(homes[places_of(entry, divided)[0]] for entry in gpus.own)
    if options.cpus is None:
        return plan_entries(node, gpus.own, allowed, options, homes=own)
    asked = options.cpus
    home_of = dict(zip(divided, homes, strict=True))
    together = {home: asked * _tasks_at(home, home_of, task, gpus) for home in homes}
    lenient = replace(options, strict=False)
    of_all = plan_entries(node, divided, allowed, lenient, homes=homes, together=together)
    theirs = (rank.cpus for rank in of_all.ranks if rank.home_node not in own)
    others = frozenset[int]().union(*theirs)
    return plan_entries(
        node, gpus.own, allowed, options, homes=own, together=together, others=others
    )


def _tasks_at(
    home: int | None, home_of: Mapping[Entry, int | None], task: SlurmTask, gpus: TaskGpus
) -> int:
    """Return how many tasks have GPUs of a home node, by the home nodes of all GPUs.

    It is the node's part of them, at most all. If all see the same GPUs, it is at least those that
    have them.
    """
    homes = list(home_of.values())
    if gpus.is_bound:  # a step with a part of the job's GPUs may have all of them here
        of_step = min(task.step_gpus or len(homes), len(homes))
        return min(task.tasks, -(-task.tasks * homes.count(home) // of_step))
    part = -(-task.tasks * homes.count(home) // len(homes))
    at_home = sum(home in [home_of[entry] for entry in of_task] for of_task in gpus.dealt)
    return max(part, at_home)


def _in_own_block(
    node: Node, task: SlurmTask, options: Options, gpus: TaskGpus, allowed: CpuSet
) -> Planned | None:
    """Return the plan of all ranks that divide the CPUs, of which the task has its GPUs' blocks.

    None where no block keeps other tasks out, is near, and has as many CPUs as were asked for.
    Without a note of the job's GPUs all GPUs of the node have blocks.
    """
    if gpus.is_bound:  # neighbors share a GPU: --ntasks-per-gpu
        sharing = -(-task.tasks * len(gpus.own) // (task.step_gpus or 1))
        slot = task.number % sharing
    else:
        sharing = max(gpus.dealt.count(of_task) for of_task in gpus.dealt)
        slot = gpus.dealt[: task.number].count(gpus.own)
    knows_step = gpus.is_bound and len(gpus.job) == task.step_gpus
    if sharing > 1 and knows_step and gpus.places != (task.number // sharing,):
        return None  # not its neighbors have the same GPU, but unknown ones
    job, places, dividing = gpus.job, gpus.places, replace(options, cpus=None)
    if not job:
        job, places = gpus.own, tuple(range(len(gpus.own)))
        dividing = replace(dividing, share="node")
    entries = tuple(entry for entry in job for _ in range(sharing))
    ranks = frozenset(place * sharing + slot for place in places)
    try:
        result = plan_entries(node, entries, allowed, dividing)
    except UnsatisfiableError:
        return None
    asking = [rank for rank in result.ranks if rank.rank in ranks]
    is_far = any(rank.locality == "remote" for rank in asking)
    is_shared = dividing.share == "node" != result.share
    cores = sum(rank.physical_cores for rank in asking)
    if is_far or is_shared or cores < _least_cores(node, options, allowed):
        return None
    return Planned(entries, ranks, options, result, allowed)


def _least_cores(node: Node, options: Options, allowed: CpuSet) -> int:
    """Return the fewest cores of a block: those asked for, as far as these are whole ones.

    The user may want fewer: a core, or no more than a number of cores.
    """
    mode = MODES[options.mode]
    wants_fewer = not (mode.counts and mode.widens) or options.max_physical_cores is not None
    if wants_fewer or options.cpus is None:
        return 1
    threads = max(len(core.cpus) for core in usable(node.topology.cores, allowed))
    return max(1, options.cpus // threads)
