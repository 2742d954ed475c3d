"""The plan of a request's ranks: the GPU of each rank, the requested ranks, and their CPUs.

A task is a process that a launcher started. It may drive several GPUs, each a rank of the plan, and
several tasks may drive one GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, pairwise
from typing import NamedTuple

from affinityd.config import GPU_ORDER
from affinityd.cpuset import CpuSet, format_list, several
from affinityd.errors import BoundError, InvalidRequestError, NoSuchGpuError, UnsatisfiableError
from affinityd.planner import Demand, Options, Plan, PlanWarning
from affinityd.planner.choose import choose_gpus, deal_in_order
from affinityd.planner.domains import home_nodes, usable_cores
from affinityd.planner.modes import MODES
from affinityd.planner.planner import plan
from affinityd.planner.slices import plan_within
from affinityd.request.devices import (
    Entry,
    VisibleDevices,
    all_devices,
    find_entries,
    narrow_visible,
)
from affinityd.request.environment import CUDA, MAX_ENTRIES, ROCR
from affinityd.request.parameters import Request
from affinityd.request.task import Task, gpus_seen
from affinityd.request.task_cpus import SlurmTask
from affinityd.topology.model import Gpu, Node, Topology

UNKNOWN_CPUS = "choose: the CPUs of the other ranks are not known"
TOLERATED = 8  #: one core in so many may be withheld from a job that has the machine for itself

#: The GPUs of each rank of a node.
GpusOfRanks = tuple[tuple[Entry, ...], ...]
#: All ranks of a node ask at once, for the same result. 256 sets of CPUs take 8 MB.
_choose_once = lru_cache(1)(choose_gpus)


@dataclass(frozen=True)
class Resolved:
    """A request, with the GPUs and CPUs that it refers to on this node."""

    node: Node
    request: Request
    task: Task  #: the request's task
    seen: VisibleDevices
    entries: tuple[Entry, ...]  #: the GPUs that the request names, else all that its caller sees
    job: tuple[Entry, ...]  #: the GPUs of the caller's job; (): not known
    cpuset: CpuSet  #: the CPUs that the request states, else the caller's, else all
    mask: CpuSet | None  #: a Slurm task's current mask; else the stated CPUs; None: unknown
    within: CpuSet | None  #: the CPUs of the caller's cgroup; None: not known
    allowed: CpuSet  #: the CPUs to plan on; Slurm tasks have others


class Planned(NamedTuple):
    """A plan, and the requested ranks in it."""

    entries: tuple[Entry, ...]  #: rank i drives entry i
    asked: frozenset[int]  #: the requested ranks
    options: Options  #: the options of the plan
    plan: Plan
    allowed: CpuSet  #: the CPUs that were planned on
    #: Rank → the variables by which it sees only the GPUs chosen for it
    visible: Mapping[int, Mapping[str, str]] = {}


def add_warnings(planned: Planned, *warnings: PlanWarning) -> Planned:
    """Return a plan with more warnings."""
    result = planned.plan
    return planned._replace(plan=result._replace(warnings=(*result.warnings, *warnings)))


def plan_ranks(resolved: Resolved) -> Planned:
    """Plan the ranks of a task, by its own devices and its job's. Raises AffinityError."""
    node = resolved.node
    task = resolved.task
    options = resolved.request.options
    if resolved.job and not (task.ranks is not None and MODES[options.mode].by_rank):
        entries, asked, gpus_of_task = _place_in_job(resolved)
    else:
        entries, asked, gpus_of_task = _place_on_own_gpus(resolved)
    if task.slice is not None:
        return _plan_in_slice(resolved, entries, asked)
    allowed = resolved.allowed
    tasks = (task.cpus and task.cpus.tasks) or task.ranks or 1
    cpus = count_asked_cpus(node, task, allowed, tasks)
    together: dict[int | None, int] = {}
    if cpus is not None:
        cpus_of_rank = -(-cpus // gpus_of_task)
        if task.cpus is not None and task.cpus.is_allotment:
            cpus_of_rank = min(cpus_of_rank, cores_of_gpu(node.topology))
            together = _cpus_together(node, cpus_of_rank, task.cpus.tasks or 1, entries, allowed)
        options = replace(options, cpus=cpus_of_rank)
    demand = demand_of(node, entries, allowed, options)
    result = plan(node.topology, demand._replace(together=together, cuts_cores=bool(together)))
    planned = Planned(entries, asked, options, result, allowed)
    is_part = len({gpu.key for gpu in demand.gpus}) < len(node.topology.gpus)
    if together and is_part and MODES[options.mode].unique and result.share == "requested":
        message = (
            f"CPUs {format_list(allowed)} are not the whole machine: jobs on other GPUs "
            "may get the same CPUs, if they may run there"
        )
        return add_warnings(planned, PlanWarning("not_unique", message))
    return planned


def _place_in_job(resolved: Resolved) -> tuple[tuple[Entry, ...], frozenset[int], int]:
    """Return the GPU of each rank of a job, the ranks of this task, and how many GPUs it has."""
    task = resolved.task
    own = resolved.entries
    sharing = 1
    slot = 0
    asking = own
    if task.ranks is not None:  # all tasks see the same GPUs, and take turns
        (rank,) = asked_ranks(task.rank, task.ranks)
        sharing = -(-task.ranks // len(own))
        slot = rank // len(own)
        asking = (own[rank % len(own)],)
    places: list[int] = []
    for entry in dict.fromkeys(asking):
        places += places_of(entry, resolved.job)
    asked = frozenset(place * sharing + slot for place in places)
    return repeat_each(resolved.job, sharing), asked, len(asking)


def _place_on_own_gpus(resolved: Resolved) -> tuple[tuple[Entry, ...], frozenset[int], int]:
    """Return what `_place_in_job` does, for a task to which only its own GPUs matter."""
    task = resolved.task
    own = resolved.entries
    ranks = task.ranks or len(own)
    if task.is_launched and task.ranks is None and task.rank:
        ranks = max(ranks, 1 + task.rank[-1])
    entries = tuple(own[rank % len(own)] for rank in range(ranks))
    has_number = task.cpus is not None and task.cpus.cpus is not None
    is_one = task.ranks is not None or (task.rank is not None and has_number)
    return entries, asked_ranks(task.rank, ranks), 1 if is_one else len(own)


def deal_gpus(resolved: Resolved, ranks: int) -> GpusOfRanks:
    """Return the GPUs of each rank if all ranks see the same GPUs: they are dealt in turns.

    If there are fewer ranks than GPUs, each rank has a block; AFFINITYD_GPU_ORDER has precedence.
    Raises BoundError.
    """
    entries = resolved.entries
    listed = resolved.task.gpu_order
    gpus = len(entries)
    if gpus > 1 and listed not in {(), ("block",)}:
        try:
            order = find_entries(resolved.seen, listed)
        except (InvalidRequestError, NoSuchGpuError) as error:
            why = "it is not known which GPU the task uses" if listed == ("unknown",) else error
            raise BoundError(f"{GPU_ORDER}={','.join(listed)}: {why}") from None
        return tuple((order[rank % len(order)],) for rank in range(ranks))
    if ranks >= gpus:
        sharing = -(-ranks // gpus) if listed else 1
        return tuple((entries[rank // sharing % gpus],) for rank in range(ranks))
    size, more = divmod(gpus, ranks)
    starts = [rank * size + min(rank, more) for rank in range(ranks + 1)]
    return tuple(tuple(entries[start:end]) for start, end in pairwise(starts))


def has_bound_gpus(task: SlurmTask, visible: Sequence[Entry]) -> bool:
    """Return whether Slurm chose a task's GPUs; if not, all tasks of the step see the same GPUs."""
    return task.binds_gpus or len(visible) < (task.step_gpus or 0)


def check_step_gpus(task: SlurmTask, visible: Sequence[Entry]) -> None:
    """Raise UnsatisfiableError if a task sees more GPUs than its step has."""
    seen = len({gpu.key for gpu in gpus_of(visible)})
    if task.step_gpus and seen > task.step_gpus and task.tasks > 1:
        raise UnsatisfiableError(
            f"it is not known which {task.step_gpus} of the {seen} visible GPUs belong to the step"
        )


def plan_chosen(resolved: Resolved) -> Planned | None:
    """Plan ranks on GPUs that are chosen for them from the GPUs that all ranks of a node see.

    All ranks find the same one of four cases. 1. The GPUs are the rank's own, maybe by an earlier
    choice: None. 2. The CPUs of all ranks are known: they keep them, and get the GPUs near them. 3.
    The launcher has bound no rank: rank i has GPU i, and CPUs near it. 4. Otherwise AffinityError
    says what is not known.
    """
    task = resolved.task
    topology = resolved.node.topology
    entries = resolved.entries
    if len(entries) == 1 or (task.slurm and has_bound_gpus(task.slurm, entries)):
        return None
    asking, ranks = _ranks_of_node(task)
    known = _known_cpus(resolved, ranks)
    for name, device in entries:
        if device.gpu.numa_node is None:
            why = f"the machine does not say on which NUMA node GPU {name} is"
            raise UnsatisfiableError(f"choose: {why}, so this GPU cannot be chosen")
    if task.slurm:
        check_step_gpus(task.slurm, entries)
    if known:
        entries = tuple(sorted(entries, key=lambda entry: entry[1].gpu.key))
        places = _choose_once(topology, known, gpus_of(entries), resolved.request.gpus_per_rank)
    else:
        places = deal_in_order(ranks, len(entries), resolved.request.gpus_per_rank)
    dealt: GpusOfRanks = ()
    for of_rank in places:
        dealt += (tuple(entries[place] for place in of_rank),)
    visible: dict[int, dict[str, str]] = {}
    if len(dealt[0]) < len(entries):
        visible = {rank: _variables_of(resolved, dealt[rank]) for rank in asking}
    asks_for_all = bool(task.masks) and task.slurm is None  # the caller is a command, not a rank
    if (not known or ranks == 1) and not (task.bound or asks_for_all):
        return _plan_near(resolved, dealt, asking[0])._replace(visible=visible)
    options = Options(strict=resolved.request.options.strict)
    kept = known or (topology.online & resolved.cpuset,) * ranks
    result = Plan((), "requested")
    allowed: CpuSet = frozenset()
    own: list[Entry] = []
    for rank in asking:
        cpus = kept[rank]
        because = "the rank keeps its CPUs, and its GPUs are chosen"
        numbers = [rank] * len(dealt[rank])
        part = plan_within(topology, gpus_of(dealt[rank]), cpus, options, because, ranks=numbers)
        result = Plan(result.ranks + part.ranks, result.share, (*result.warnings, *part.warnings))
        allowed |= cpus
        own += dealt[rank]
    asked = frozenset(asking)
    return Planned(tuple(own), asked, resolved.request.options, result, allowed, visible=visible)


def _ranks_of_node(task: Task) -> tuple[Sequence[int], int]:
    if task.slurm:
        return [task.slurm.number], task.slurm.tasks
    if not task.rank:  # a command asks for all ranks
        ranks = len(task.masks) or 1
        return range(ranks), ranks
    if not task.ranks:
        raise UnsatisfiableError(f"{UNKNOWN_CPUS}, nor is the number of ranks: give ranks")
    if task.rank[0] >= task.ranks:
        raise InvalidRequestError(f"choose: rank {task.rank[0]} is not one of {task.ranks} ranks")
    return [task.rank[0]], task.ranks


def _known_cpus(resolved: Resolved, ranks: int) -> tuple[CpuSet, ...]:
    """Return the CPUs that the launcher gave each rank of a node; (): it bound no rank.

    For a rank that affinityd has pinned, the CPUs in the launcher's list count: so all ranks choose
    alike, pinned or not. Raises UnsatisfiableError if the CPUs are not known.
    """
    task = resolved.task
    online = resolved.node.topology.online
    cpus = online & resolved.cpuset
    unknown = task.masks_unknown
    if task.cpuset is None and ranks > 1 and not cpus >= online & (resolved.within or cpus):
        unknown = f"the caller is bound to {format_list(cpus)}: give the CPUs of all as cpuset"
    if unknown and not task.masks:
        raise UnsatisfiableError(f"{UNKNOWN_CPUS}: {unknown}")
    if not task.masks:
        return (cpus,) if ranks == 1 else ()
    listed = task.masks
    slurm = task.slurm
    known = tuple(listed[rank % len(listed)] & online for rank in range(ranks))
    if not all(known):
        raise UnsatisfiableError("choose: a rank has no CPU that is online here")
    if slurm is None:
        return known
    if 1 < len(listed) < ranks and not task.bound:  # Slurm repeats a short list
        raise UnsatisfiableError(f"{UNKNOWN_CPUS}: Slurm lists {len(listed)} of {ranks}")
    own = known[slurm.number]
    now = (resolved.mask or frozenset()) & online
    is_pinned = now == slurm.pinned & online
    if now != own and not (is_pinned and slurm.allowed <= frozenset[int]().union(*known)):
        theirs = f"SLURM_CPU_BIND_LIST has CPUs {format_list(own)} for this rank"
        raise UnsatisfiableError(f"{UNKNOWN_CPUS}: {theirs}, but it may run on {format_list(now)}")
    return known if len(set(known)) > 1 else ()


def _variables_of(resolved: Resolved, own: Sequence[Entry]) -> dict[str, str]:
    """Return the variables by which a rank sees only these GPUs, as its driver numbers them."""
    task = resolved.task
    numbers = [int(name) for name, _ in own]
    unhidden = replace(task, granted=task.opened, nvidia_visible=None)
    opened = gpus_seen(resolved.node.topology, unhidden).by_index
    if task.visible is None and len(opened) > len(resolved.seen.by_index):
        devices = [device for _, device in own]
        numbers = [number for number, device in opened.items() if device in devices]
    variable, value = narrow_visible(task.visible, own[0][1].gpu.vendor, numbers)
    if variable == ROCR and dict(task.lists).get(CUDA):  # HIP indexes ROCR's list
        return {variable: value, CUDA: ",".join(map(str, range(len(numbers))))}
    return {variable: value}


def _plan_near(resolved: Resolved, dealt: GpusOfRanks, own: int) -> Planned:
    """Plan a rank on CPUs near its GPUs, as if every rank had named its GPUs."""
    every = tuple(chain.from_iterable(dealt))
    each = len(dealt[own])
    places = tuple(range(own * each, (own + 1) * each))
    task = replace(resolved.task, rank=places, ranks=len(every))
    planned = plan_ranks(replace(resolved, task=task, entries=every, job=()))
    result = planned.plan
    ranks = tuple(place._replace(rank=place.rank // each) for place in result.ranks)
    warnings = tuple(
        warning if warning.rank is None else warning._replace(rank=warning.rank // each)
        for warning in result.warnings
    )
    result = result._replace(ranks=ranks, warnings=warnings)
    return planned._replace(plan=result, asked=frozenset((own,)))


def plan_bound(
    resolved: Resolved,
    entries: tuple[Entry, ...],
    asked: frozenset[int],
    cpus: CpuSet,
    because: str,
    *,
    remedy: str = "",
) -> Planned:
    """Plan the ranks of a process on CPUs to which a launcher has bound no other process."""
    options = replace(resolved.request.options, cpus=None)
    ranks = sorted(asked)
    gpus = gpus_of([entries[rank] for rank in ranks])
    result = plan_within(
        resolved.node.topology, gpus, cpus, options, because, remedy=remedy, ranks=ranks
    )
    return Planned(entries, asked, options, result, cpus)


def _plan_in_slice(
    resolved: Resolved, entries: tuple[Entry, ...], asked: frozenset[int]
) -> Planned:
    """Plan as `plan_bound` does, on CPUs that other processes may share."""
    cpus = resolved.allowed
    if not cpus:
        raise UnsatisfiableError("no CPU is allowed: the launcher's mask has none of this machine")
    because = f"a launcher bound the rank to CPUs {format_list(cpus)}"
    planned = plan_bound(resolved, entries, asked, cpus, because)
    mode = planned.options.mode
    if not MODES[mode].unique:
        return planned
    message = f"mode {mode}: {because}, which other ranks may have, too"
    return add_warnings(planned, PlanWarning("not_unique", message))


def _cpus_together(
    node: Node, cpus: int, tasks: int, entries: Sequence[Entry], allowed: CpuSet
) -> dict[int | None, int]:
    """Return how many CPUs the ranks of each home node get, with `cpus` for each rank."""
    sees_all = len(entries) >= tasks
    gpus = gpus_of(entries) if sees_all else node.topology.gpus
    homes = home_nodes(node.topology, gpus, allowed) if allowed else []
    together: dict[int | None, int] = {}
    for home in homes:
        ranks = homes.count(home)
        if not sees_all:  # all GPUs of the other tasks may be on this home node
            ranks = max(min(ranks, tasks), -(-tasks * ranks // len(homes)))
        together[home] = cpus * ranks
    return together


def repeat_each(entries: Sequence[Entry], times: int) -> tuple[Entry, ...]:
    """Return a list with each entry repeated so many times."""
    repeated: list[Entry] = []
    for entry in entries:
        repeated += [entry] * times
    return tuple(repeated)


def demand_of(node: Node, entries: Sequence[Entry], allowed: CpuSet, options: Options) -> Demand:
    """Return the demand of ranks, of which rank i drives entry i. Raises InvalidRequestError."""
    if len(entries) > MAX_ENTRIES:
        raise InvalidRequestError(f"{len(entries)} GPUs are too many; the most is {MAX_ENTRIES}")
    return Demand(gpus_of(entries), allowed, node.usable, options)


def gpus_of(entries: Sequence[Entry]) -> tuple[Gpu, ...]:
    """Return the GPU of each entry."""
    return tuple(device.gpu for _, device in entries)


def job_entries(topology: Topology, task: Task, own: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the GPUs of a task's job, by the node's numbering; (): not known.

    GPUs that a variable names count only if the task's own GPUs are among them. If the request
    states the job's GPUs, it is an error if the task's own GPUs are not among them.
    """
    if not task.job:
        return ()
    try:
        job = find_entries(all_devices(topology), task.job)
        for entry in dict.fromkeys(own):  # many of 256 entries may be equal
            places_of(entry, job)
    except (InvalidRequestError, NoSuchGpuError) as error:
        if task.is_launched:
            return ()
        raise type(error)(f"job: {error}") from None
    return job


def asked_ranks(asked: Sequence[int] | None, count: int) -> frozenset[int]:
    """Return the requested ranks of `count`; None: all. Raises InvalidRequestError."""
    ranks = range(count) if asked is None else asked
    if beyond := [rank for rank in ranks if rank >= count]:
        raise InvalidRequestError(
            f"rank: there is no rank {beyond[0]}; the request has {several('rank', range(count))}"
        )
    return frozenset(ranks)


def places_of(entry: Entry, job: Sequence[Entry]) -> list[int]:
    """Return the positions of a device, or of its GPU, in a job's list. Raises NoSuchGpuError."""
    name, device = entry
    places = [place for place, (_, other) in enumerate(job) if other == device]
    if not places:
        places = [place for place, gpu in enumerate(gpus_of(job)) if gpu.key == device.gpu.key]
    if not places:
        raise NoSuchGpuError(
            f"the caller's GPU {name} ({device.gpu.pci_bus_id}) is not among the job's: "
            + ", ".join(f"{name} ({other.gpu.pci_bus_id})" for name, other in job)
        )
    return places


def count_asked_cpus(node: Node, task: Task, allowed: CpuSet, tasks: int) -> int | None:
    """Return how many logical CPUs each of the tasks on these CPUs asked for; None: unknown."""
    asked = task.cpus
    if asked is None:
        return None
    together = min(len(allowed), asked.of_job or len(allowed))
    each = max(1, together // tasks)
    if asked.is_allotment:
        return None if allowed >= node.usable else each
    if asked.is_container:
        return None if (asked.of_job or 0) >= len(node.topology.online) else each
    if asked.cpus is None:
        return at_most_of_whole_node(node.topology, each, together, allowed, node.usable)
    # Ranks of another launcher may have inherited a script's variable, which is for all of them
    # together.
    return min(asked.cpus, together if task.slurm else each)


def at_most_of_whole_node(
    topology: Topology, each: int, granted: int, cpus: CpuSet, usable_cpus: CpuSet
) -> int:
    """Return `each`, but at most a GPU's part of the cores if a job has the machine for itself.

    Such a job may lack a few cores (CoreSpecCount), and second threads (--hint=nomultithread).
    """
    cores = usable_cores(topology.cores, usable_cpus)
    lacking = sum(cpus.isdisjoint(core.cpus) for core in cores)
    is_less = lacking * TOLERATED > len(cores) or granted * TOLERATED <= len(cpus) * (TOLERATED - 1)
    return each if is_less else min(each, cores_of_gpu(topology))


def cores_of_gpu(topology: Topology) -> int:
    """Return a GPU's part of the machine's cores, at least one."""
    return max(1, len(topology.cores) // max(1, len(topology.gpus)))
