"""Which GPU each rank of a request drives, which ranks the answer is for, and what they asked for.

A task is a process that a launcher started. It may drive several GPUs, a rank of the plan each, and
several tasks may share a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from affinityd.cpuset import CpuSet, several
from affinityd.errors import InvalidRequestError, JobGpuError, NoSuchGpuError, NoSuchRankError
from affinityd.planner import Options, Plan
from affinityd.planner.domains import usable
from affinityd.planner.modes import MODES
from affinityd.request.devices import (
    ComputeDevice,
    VisibleDevices,
    all_devices,
    is_ambiguous,
    select_devices,
    visible_devices,
)
from affinityd.request.parameters import MAX_ENTRIES, Request
from affinityd.topology.model import Gpu, Topology

TOLERATED = 8  #: one core in so many may be kept from a job that has a machine for itself

#: How a request names a device, or would have, and the device.
Entry = tuple[str, ComputeDevice]


class Planned(NamedTuple):
    """A plan, and the ranks that it is for."""

    entries: tuple[Entry, ...]  #: rank i drives the i-th
    asked: frozenset[int]  #: the requested ranks
    ambiguous: bool  #: an index depends on CUDA_DEVICE_ORDER
    options: Options  #: as planned by
    plan: Plan


class Ranks(NamedTuple):
    """The ranks that divide the cores."""

    entries: tuple[Entry, ...]  #: rank i drives the i-th
    asked: frozenset[int]  #: the requested ranks
    ambiguous: bool  #: an index depends on CUDA_DEVICE_ORDER
    gpus_per_task: int  #: how many ranks of the plan one task is
    tasks_per_gpu: int = 1  #: how many tasks one rank of the plan stands for


def ranks_of(topology: Topology, request: Request) -> Ranks:
    """Return the ranks of a request.

    They are its `gpus`, dealt again from the first if there are more `ranks` than GPUs. Or,
    for a task of a job: the job's GPUs, each as often as tasks share one. Raises
    NoSuchRankError for a rank that is not there, NoSuchGpuError for a device that is not here,
    JobGpuError for one that is not the job's.
    """
    seen = visible_devices(topology, request)
    own = named(seen, request.gpus)
    ambiguous = is_ambiguous(seen, request.gpus)
    mode = MODES[request.options.mode]
    if request.job is None or (request.ranks is not None and mode.by_rank):
        return _by_number(request, own, ambiguous=ambiguous)
    job = job_entries(topology, request.job)
    ambiguous = ambiguous or is_ambiguous(all_devices(topology), request.job)
    sharing, slot, mine = 1, 0, own
    if request.ranks is not None:  # all tasks see the same, and take turns
        (task,) = asked_ranks(request.rank, request.ranks)
        sharing, slot = -(-request.ranks // len(own)), task // len(own)
        mine = (own[task % len(own)],)
    copies = 1 if mode.shares else sharing
    slot = 0 if mode.shares else slot
    return Ranks(
        entries=checked(tuple(entry for entry in job for _ in range(copies))),
        asked=frozenset(place * copies + slot for entry in mine for place in place_of(entry, job)),
        ambiguous=ambiguous,
        gpus_per_task=len(mine),
        tasks_per_gpu=sharing // copies,
    )


def _by_number(request: Request, own: tuple[Entry, ...], *, ambiguous: bool) -> Ranks:
    """Return the ranks of a request that are not told apart by their GPUs."""
    ranks = tuple(own[rank % len(own)] for rank in range(request.ranks or len(own)))
    has_number = request.task_cpus is not None and request.task_cpus.cpus is not None
    is_one = request.ranks is not None or (request.rank is not None and has_number)
    return Ranks(
        checked(ranks),
        asked_ranks(request.rank, len(ranks)),
        ambiguous,
        gpus_per_task=1 if is_one else len(own),
    )


def gpus_of(entries: Sequence[Entry]) -> tuple[Gpu, ...]:
    """Return the GPU of each entry."""
    return tuple(device.gpu for _, device in entries)


def named(seen: VisibleDevices, names: tuple[str, ...] | None) -> tuple[Entry, ...]:
    """Return the visible devices of these names, in their order; None: all of them."""
    if names is None:
        return tuple(zip(map(str, seen.by_index), select_devices(seen, None), strict=True))
    different = tuple(dict.fromkeys(names))  # each rank of a large job names its GPU
    device = dict(zip(different, select_devices(seen, different), strict=True))
    return tuple((name, device[name]) for name in names)


def job_entries(topology: Topology, names: tuple[str, ...]) -> tuple[Entry, ...]:
    """Return a job's GPUs, by the node's numbering. Raises JobGpuError."""
    try:
        return named(all_devices(topology), names)
    except (InvalidRequestError, NoSuchGpuError) as error:
        raise JobGpuError(f"job: {error}") from None


def checked(ranks: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Return ranks that are not too many. Raises InvalidRequestError."""
    if len(ranks) > MAX_ENTRIES:
        raise InvalidRequestError(f"{len(ranks)} GPUs are too many; the most is {MAX_ENTRIES}")
    return ranks


def asked_ranks(asked: Sequence[int] | None, count: int) -> frozenset[int]:
    """Return the requested ones of so many ranks; None: all. Raises NoSuchRankError."""
    if asked is None:
        return frozenset(range(count))
    beyond = [rank for rank in asked if rank >= count]
    if beyond:
        raise NoSuchRankError(
            f"rank: there is no rank {beyond[0]}; the request has {several('rank', range(count))}"
        )
    return frozenset(asked)


def place_of(own: Entry, job: Sequence[Entry]) -> list[int]:
    """Return where a device is in a job's list: itself, else its GPU. Raises JobGpuError."""
    name, device = own
    itself = [place for place, (_, theirs) in enumerate(job) if theirs == device]
    gpus = (place for place, (_, theirs) in enumerate(job) if theirs.gpu.key == device.gpu.key)
    places = itself or list(gpus)
    if not places:
        raise JobGpuError(
            f"job: the caller's GPU {name} ({device.gpu.pci_bus_id}) is not among the job's: "
            + ", ".join(f"{name} ({theirs.gpu.pci_bus_id})" for name, theirs in job)
        )
    return places


def asked_cpus(
    topology: Topology, request: Request, ranks: Ranks, allowed: CpuSet, usable_cpus: CpuSet
) -> int | None:
    """Return how many logical CPUs each rank asked for; None: no number was given.

    The tasks together may use `allowed`; the whole machine could give `usable_cpus`.
    """
    asked = request.task_cpus
    if asked is None:
        return request.options.cpus
    together = min(len(allowed), asked.of_job or len(allowed))
    each = max(1, together // (asked.tasks or request.ranks or 1))
    if asked.cpus is not None:  # a variable may be of the job's script, and more than a step's
        each = min(each, asked.cpus)
    else:
        each = at_most_of_whole_node(topology, each, together, allowed, usable_cpus)
    return -(-each * ranks.tasks_per_gpu // ranks.gpus_per_task)


def asked_each(
    topology: Topology, granted: int, ranks: int, cpus: CpuSet, usable_cpus: CpuSet
) -> int:
    """Return how many CPUs each rank of a job asked for, by the number granted to the job.

    The job may use `cpus`.
    """
    return at_most_of_whole_node(topology, -(-granted // ranks), granted, cpus, usable_cpus)


def at_most_of_whole_node(
    topology: Topology, each: int, granted: int, cpus: CpuSet, usable_cpus: CpuSet
) -> int:
    """Return `each`, at most a GPU's part of the cores where a job has the machine for itself.

    Then its CPUs were not counted out. A few cores may be kept from it (Slurm's CoreSpecCount), and
    all second threads of cores (--hint=nomultithread).
    """
    cores = usable(topology.cores, usable_cpus)
    lacking = sum(cpus.isdisjoint(core.cpus) for core in cores)
    is_less = lacking * TOLERATED > len(cores) or granted * TOLERATED <= len(cpus) * (TOLERATED - 1)
    of_gpu = max(1, len(topology.cores) // max(1, len(topology.gpus)))
    return each if is_less else min(each, of_gpu)
