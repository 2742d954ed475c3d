"""The plan of a task of a Slurm step, by the task's own facts alone. Pure.

The rule is in docs/slurm.md, "What each task gets". Slurm's own distribution of GPUs is not derived
again: a task knows its GPUs, its number, how many tasks the step has on the node, and their CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from affinityd.cpuset import CpuSet
from affinityd.errors import UnsatisfiableError
from affinityd.planner import Options, Plan, PlanWarning
from affinityd.planner.domains import nearest_nodes, usable
from affinityd.planner.modes import MODES
from affinityd.request.devices import Entry, all_devices, named
from affinityd.request.parameters import Request, SlurmTask
from affinityd.request.ranks import Planned, asked_cpus, gpus_of, places_of, plan_entries
from affinityd.topology.model import Node


class TaskGpus(NamedTuple):
    """The GPUs of a task, and those that it is planned among."""

    visible: tuple[Entry, ...]
    own: tuple[Entry, ...]
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
    allowed: CpuSet,
) -> Planned:
    """Plan a task of a step that may use these CPUs, by the devices that it sees and its job's.

    Raises AffinityError.
    """
    options, mode = request.options, MODES[request.options.mode]
    gpus, has_siblings = _task_gpus(node, task, visible, job), task.tasks > 1
    if options.cpus is None:
        options = replace(options, cpus=asked_cpus(node, request, allowed, task.tasks))
    if mode.by_rank and has_siblings:
        entries = tuple(gpus.own[rank % len(gpus.own)] for rank in range(task.tasks))
        result = plan_entries(node, entries, allowed, options)
        return Planned(entries, frozenset((task.number,)), options, result)
    if mode.shares_node and has_siblings and allowed:
        in_block = _in_own_block(node, task, options, gpus, allowed)
        if in_block:
            return in_block
    result = _beside_neighbors(node, task, options, gpus, allowed)
    if mode.unique and has_siblings:
        message = (
            f"mode {options.mode} has too few CPUs near this task's GPUs to give it as many as it "
            "asked for: it has those of mode node, which other tasks may share"
        )
        result = result._replace(warnings=(*result.warnings, PlanWarning("not_unique", message)))
    return Planned(gpus.own, frozenset(range(len(gpus.own))), options, result)


def _task_gpus(
    node: Node, task: SlurmTask, visible: tuple[Entry, ...], job: tuple[Entry, ...]
) -> TaskGpus:
    """Return a task's GPUs: those that Slurm bound to it, else its part of those that all see."""
    is_bound = len(visible) < (task.step_gpus or 0)
    own = visible if is_bound else visible[_dealt(task.number, task.tasks, len(visible))]
    everything = all_devices(node.topology)
    if len(job) < (task.step_gpus or 0):  # of several types Slurm tells a prolog the last alone
        job = ()
    if not job and task.step_gpus == len(everything.by_index):  # needs no note
        job = named(everything, None)
    places = tuple(places_of(entry, job)[0] for entry in own) if job else ()
    return TaskGpus(visible, own, job, places, is_bound)


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
    if task.slices and asked >= len(allowed) // task.tasks:
        # Not fewer than Slurm bound it to: alone on a node, a job has more than it asked for.
        asked = max(asked, len(task.slice & allowed))
    together = {home: asked * _tasks_at(home, homes, task, gpus) for home in homes}
    lenient = replace(options, strict=False)
    of_all = plan_entries(node, divided, allowed, lenient, homes=homes, together=together)
    theirs = (rank.cpus for rank in of_all.ranks if rank.home_node not in own)
    others = frozenset[int]().union(*theirs)
    return plan_entries(
        node, gpus.own, allowed, options, homes=own, together=together, others=others
    )


def _dealt(number: int, tasks: int, gpus: int) -> slice:
    """Return the part of a task of GPUs that all see: one in turn, or a block in order."""
    if tasks >= gpus:
        return slice(number % gpus, number % gpus + 1)
    size, more = divmod(gpus, tasks)
    start = number * size + min(number, more)
    return slice(start, start + size + (number < more))


def _tasks_at(
    home: int | None, homes: Sequence[int | None], task: SlurmTask, gpus: TaskGpus
) -> int:
    """Return how many tasks have GPUs of a home node, of the home nodes of all GPUs.

    It is the node's part of them, at most all. If all see the same GPUs, it is at least those that
    have them.
    """
    if gpus.is_bound:  # a step with a part of the job's GPUs may have all of them here
        of_step = min(task.step_gpus or len(homes), len(homes))
        return min(task.tasks, -(-task.tasks * homes.count(home) // of_step))
    dealt = (homes[_dealt(other, task.tasks, len(homes))] for other in range(task.tasks))
    part = -(-task.tasks * homes.count(home) // len(homes))
    return max(part, sum(home in homes_of_task for homes_of_task in dealt))


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
    else:  # they take turns
        sharing = -(-task.tasks // len(gpus.visible))
        slot = task.number // len(gpus.visible)
    by_slice = gpus.is_bound and sharing > 1 and len(task.slices) > 1
    if by_slice:  # Slurm chose by their slices which tasks share a GPU
        sharing, slot = 1, 0
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
        if by_slice:
            block = frozenset[int]().union(*(result.ranks[place].cpus for place in places))
            part, share = block & _own_cores(node, task), result.share
            entries, ranks = gpus.own, frozenset(range(len(gpus.own)))
            result = plan_entries(node, entries, part, replace(dividing, share="requested"))
            result = result._replace(share=share)
    except UnsatisfiableError:
        return None
    asking = [rank for rank in result.ranks if rank.rank in ranks]
    is_far = any(rank.locality == "remote" for rank in asking)
    is_shared = dividing.share == "node" != result.share
    cores = sum(rank.physical_cores for rank in asking)
    if is_far or is_shared or cores < _least_cores(node, options, allowed):
        return None
    return Planned(entries, ranks, options, result)


def _own_cores(node: Node, task: SlurmTask) -> CpuSet:
    """Return the CPUs of a task's slice, without cores of which another task has a part."""
    slices = [task.slices[other % len(task.slices)] for other in range(task.tasks)]
    others = frozenset[int]().union(*slices[: task.number], *slices[task.number + 1 :])
    cores = (core.cpus for core in node.topology.cores)
    return task.slice.intersection(*[chain(*filter(others.isdisjoint, cores))])


def _least_cores(node: Node, options: Options, allowed: CpuSet) -> int:
    """Return the fewest cores of a block: those asked for, as far as these are whole ones.

    The user may want fewer: a core, or no more than a number of cores.
    """
    wants_fewer = not MODES[options.mode].counts or options.max_physical_cores is not None
    if wants_fewer or options.cpus is None:
        return 1
    threads = max(len(core.cpus) for core in usable(node.topology.cores, allowed))
    return max(1, options.cpus // threads)
