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
from affinityd.planner import Demand, Options, Plan, PlanWarning
from affinityd.planner.domains import home_nodes, usable
from affinityd.planner.modes import MODES
from affinityd.planner.planner import plan
from affinityd.request.devices import Entry, all_devices, named
from affinityd.request.parameters import Request, SlurmTask
from affinityd.request.ranks import Planned, asked_cpus, checked, gpus_of, places_of
from affinityd.topology.model import Node


def step_cpus(task: SlurmTask, mask: CpuSet) -> CpuSet:
    """Return the CPUs of a task's step: all slices, where the task still runs on its own.

    Another mask is the user's choice, or was inherited from another step.
    """
    if not task.slices:
        return mask
    own = task.slices[task.number % len(task.slices)]
    return frozenset().union(*task.slices) if mask == own else mask


#: The devices that a caller sees, and those of its job; (): these are not known.
Devices = tuple[tuple[Entry, ...], tuple[Entry, ...]]


class TaskGpus(NamedTuple):
    """The GPUs of a task, and those that it is planned among."""

    visible: tuple[Entry, ...]
    own: tuple[Entry, ...]
    job: tuple[Entry, ...]  #: of its job; (): no note has them, or these are not here
    places: tuple[int, ...]  #: of its own among the job's
    is_bound: bool  #: Slurm chose its own; else all tasks of the step see the same ones


def plan_task(
    node: Node, request: Request, task: SlurmTask, devices: Devices, allowed: CpuSet
) -> Planned:
    """Plan a task of a step that may use these CPUs. Raises AffinityError."""
    mode, gpus = MODES[request.options.mode], _task_gpus(node, task, *devices)
    options = request.options
    if options.cpus is None:
        options = replace(options, cpus=asked_cpus(node, request, allowed, task.tasks))
    if mode.by_rank and task.tasks > 1:
        entries = checked(tuple(gpus.own[rank % len(gpus.own)] for rank in range(task.tasks)))
        result = plan(node.topology, Demand(gpus_of(entries), allowed, node.usable, options))
        return Planned(entries, frozenset((task.number,)), options, result)
    divides = mode.shares_node and task.tasks > 1
    if divides and allowed and (block := _in_own_block(node, task, options, gpus, allowed)):
        entries, ranks, result = block
        return Planned(entries, ranks, options, result)
    result = _beside_neighbors(node, task, options, gpus, allowed)
    if mode.unique and task.tasks > 1:
        result = result._replace(warnings=(*result.warnings, _not_unique(options.mode)))
    return Planned(gpus.own, frozenset(range(len(gpus.own))), options, result)


def _task_gpus(
    node: Node, task: SlurmTask, visible: tuple[Entry, ...], job: tuple[Entry, ...]
) -> TaskGpus:
    """Return a task's GPUs: those that Slurm bound to it, else its part of those that all see."""
    is_bound = len(visible) < (task.step_gpus or 0)
    own = visible if is_bound else visible[_dealt(task.number, task.tasks, len(visible))]
    everything = all_devices(node.topology)
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
    demand = Demand(gpus_of(gpus.own), allowed, node.usable, options)
    if not allowed:
        return plan(node.topology, demand)
    # All tasks see the step's GPUs, unless Slurm bound them: then the step's are some of the job's.
    divided = (gpus.job if gpus.is_bound else ()) or gpus.visible
    homes = tuple(home_nodes(node.topology, gpus_of(divided), allowed))
    own = tuple(homes[places_of(entry, divided)[0]] for entry in gpus.own)
    demand = replace(demand, homes=own)
    if options.cpus is None:
        return plan(node.topology, demand)
    asked = _at_least_its_slice(task, options.cpus, allowed)
    together = {home: asked * _tasks_at(home, homes, task, gpus) for home in homes}
    demand = replace(demand, together=together)
    everything = plan(
        node.topology,
        replace(demand, gpus=gpus_of(divided), homes=homes, options=replace(options, strict=False)),
    )
    theirs = (rank.cpus for rank in everything.ranks if rank.home_node not in own)
    return plan(node.topology, replace(demand, others=frozenset().union(*theirs)))


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
    of_step = min(task.step_gpus or len(homes), len(homes))
    if gpus.is_bound:  # a step with a part of the job's GPUs may have all of them here
        return min(task.tasks, -(-task.tasks * homes.count(home) // of_step))
    dealt = (homes[_dealt(other, task.tasks, len(homes))] for other in range(task.tasks))
    part = -(-task.tasks * homes.count(home) // len(homes))
    return max(part, sum(home in homes_of_task for homes_of_task in dealt))


def _at_least_its_slice(task: SlurmTask, asked: int, allowed: CpuSet) -> int:
    """Return how many CPUs a task asked for: not fewer than Slurm bound it to.

    A job that has the node to itself was given more than it asked for.
    """
    if not task.slices or asked < len(allowed) // task.tasks:
        return asked
    return max(asked, len(task.slices[task.number % len(task.slices)] & allowed))


def _in_own_block(
    node: Node, task: SlurmTask, options: Options, gpus: TaskGpus, allowed: CpuSet
) -> tuple[tuple[Entry, ...], frozenset[int], Plan] | None:
    """Return the ranks that divide the CPUs, the task's, and the plan of its GPUs' blocks.

    None where no block keeps other tasks out, is near, and has as many CPUs as were asked for.
    Without a note of the job's GPUs all GPUs of the node have blocks.
    """
    sharing, slot = _slot(task, gpus)
    by_slice = gpus.is_bound and sharing > 1 and len(task.slices) > 1
    if by_slice:  # Slurm chose by their slices which tasks share a GPU
        sharing, slot = 1, 0
    knows_step = gpus.is_bound and len(gpus.job) == task.step_gpus
    if sharing > 1 and knows_step and gpus.places != (task.number // sharing,):
        return None  # not its neighbors have the same GPU, but unknown ones
    job, places = gpus.job, gpus.places
    if not job:
        job, places = gpus.own, tuple(range(len(gpus.own)))
        options = replace(options, share="node")
    entries = checked(tuple(entry for entry in job for _ in range(sharing)))
    ranks = frozenset(place * sharing + slot for place in places)
    least = _least(node, options, allowed)
    options = replace(options, cpus=None)
    try:
        result = plan(node.topology, Demand(gpus_of(entries), allowed, node.usable, options))
        if by_slice:
            block = frozenset[int]().union(*(result.ranks[place].cpus for place in places))
            part, share = block & _own_slice(node, task), result.share
            entries, ranks = gpus.own, frozenset(range(len(gpus.own)))
            by_part = replace(options, share="requested")
            result = plan(node.topology, Demand(gpus_of(entries), part, node.usable, by_part))
            result = result._replace(share=share)
    except UnsatisfiableError:
        return None
    asking = [rank for rank in result.ranks if rank.rank in ranks]
    is_far = any(rank.locality == "remote" for rank in asking)
    is_shared = options.share == "node" != result.share
    is_enough = sum(rank.physical_cores for rank in asking) >= least
    return None if is_far or is_shared or not is_enough else (entries, ranks, result)


def _own_slice(node: Node, task: SlurmTask) -> CpuSet:
    """Return the CPUs of a task's slice, without cores of which another task has a part."""
    slices = [task.slices[other % len(task.slices)] for other in range(task.tasks)]
    others = frozenset[int]().union(*slices[: task.number], *slices[task.number + 1 :])
    cores = (core.cpus for core in node.topology.cores)
    return slices[task.number].intersection(*[chain(*filter(others.isdisjoint, cores))])


def _slot(task: SlurmTask, gpus: TaskGpus) -> tuple[int, int]:
    """Return how many tasks divide the block of a GPU, and which part is the task's."""
    if not gpus.is_bound:  # they take turns
        return -(-task.tasks // len(gpus.visible)), task.number // len(gpus.visible)
    sharing = -(-task.tasks * len(gpus.own) // (task.step_gpus or 1))
    return sharing, task.number % sharing  # neighbors share a GPU: --ntasks-per-gpu


def _least(node: Node, options: Options, allowed: CpuSet) -> int:
    """Return the fewest cores of a block: those asked for, as far as these are whole ones.

    The user may want fewer: a core, or no more than a number of cores.
    """
    wants_fewer = not MODES[options.mode].counts or options.max_physical_cores is not None
    if wants_fewer or options.cpus is None:
        return 1
    threads = max(len(core.cpus) for core in usable(node.topology.cores, allowed))
    return max(1, options.cpus // threads)


def _not_unique(mode: str) -> PlanWarning:
    return PlanWarning(
        "not_unique",
        f"mode {mode} has too few CPUs near this task's GPUs to give it as many as it asked for: "
        "it has those of mode node, which other tasks may share",
    )
