"""Which GPU each rank of a request drives, which ranks the answer is for, and what they asked for.

A task is a process that a launcher started. It may drive several GPUs, a rank of the plan each, and
several tasks may share a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from affinityd.cpuset import CpuSet, several
from affinityd.errors import InvalidRequestError, NoSuchGpuError
from affinityd.planner import Options, Plan
from affinityd.planner.domains import usable
from affinityd.planner.modes import MODES
from affinityd.request.devices import (
    Entry,
    all_devices,
    is_ambiguous,
    named,
    visible_devices,
)
from affinityd.request.parameters import MAX_ENTRIES, Request
from affinityd.topology.model import Gpu, Topology

TOLERATED = 8  #: one core in so many may be kept from a job that has a machine for itself


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


def ranks_of(topology: Topology, request: Request) -> Ranks:
    """Return the ranks of a request.

    They are its `gpus`, dealt again from the first if there are more `ranks` than GPUs. Or,
    for a task of a job: the job's GPUs, each as often as tasks share one. Raises
    InvalidRequestError for a rank that is not there, NoSuchGpuError for a device that is not here,
    or not the job's.
    """
    seen = visible_devices(topology, request)
    own = named(seen, request.gpus)
    ambiguous = is_ambiguous(seen, request.gpus)
    mode = MODES[request.options.mode]
    job = () if request.ranks is not None and mode.by_rank else job_entries(topology, request, own)
    if not job:
        return _by_number(request, own, ambiguous=ambiguous)
    ambiguous = ambiguous or is_ambiguous(all_devices(topology), request.job)
    sharing, slot, mine = 1, 0, own
    if request.ranks is not None:  # all tasks see the same, and take turns
        (task,) = asked_ranks(request.rank, request.ranks)
        sharing, slot = -(-request.ranks // len(own)), task // len(own)
        mine = (own[task % len(own)],)
    places = [place for entry in mine for place in places_of(entry, job)]
    return Ranks(
        entries=checked(tuple(entry for entry in job for _ in range(sharing))),
        asked=frozenset(place * sharing + slot for place in places),
        ambiguous=ambiguous,
        gpus_per_task=len(mine),
    )


def _by_number(request: Request, own: tuple[Entry, ...], *, ambiguous: bool) -> Ranks:
    """Return the ranks of a request that are not told apart by their GPUs."""
    count = request.ranks or len(own)
    if request.is_of_process and request.ranks is None and request.rank:
        count = max(count, 1 + request.rank[-1])
    has_number = request.task_cpus is not None and request.task_cpus.cpus is not None
    is_one = request.ranks is not None or (request.rank is not None and has_number)
    return Ranks(
        checked(tuple(own[rank % len(own)] for rank in range(count))),
        asked_ranks(request.rank, count),
        ambiguous,
        gpus_per_task=1 if is_one else len(own),
    )


def gpus_of(entries: Sequence[Entry]) -> tuple[Gpu, ...]:
    """Return the GPU of each entry."""
    return tuple(device.gpu for _, device in entries)


def job_entries(topology: Topology, request: Request, own: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the GPUs of a request's job, by the node's numbering; (): it names none.

    Raises InvalidRequestError or NoSuchGpuError for others than are here, or without its own.
    """
    try:
        job = named(all_devices(topology), request.job) if request.job else ()
        for entry in own if job else ():
            places_of(entry, job)
    except (InvalidRequestError, NoSuchGpuError) as error:
        raise type(error)(f"job: {error}") from None
    return job


def with_fitting_job(topology: Topology, request: Request) -> Request:
    """Return a request, without its job's GPUs if a note has them, and they do not fit."""
    if request.is_of_process and request.job:
        own = named(visible_devices(topology, request), request.gpus)
        try:
            job_entries(topology, request, own)
        except (InvalidRequestError, NoSuchGpuError):
            return replace(request, job=None)
    return request


def checked(ranks: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Return ranks that are not too many. Raises InvalidRequestError."""
    if len(ranks) > MAX_ENTRIES:
        raise InvalidRequestError(f"{len(ranks)} GPUs are too many; the most is {MAX_ENTRIES}")
    return ranks


def asked_ranks(asked: Sequence[int] | None, count: int) -> frozenset[int]:
    """Return the requested ones of so many ranks; None: all. Raises InvalidRequestError."""
    ranks = range(count) if asked is None else asked
    if beyond := [rank for rank in ranks if rank >= count]:
        raise InvalidRequestError(
            f"rank: there is no rank {beyond[0]}; the request has {several('rank', range(count))}"
        )
    return frozenset(ranks)


def places_of(entry: Entry, job: Sequence[Entry]) -> list[int]:
    """Return where a device is in a job's list: itself, else its GPU. Raises NoSuchGpuError."""
    name, device = entry
    places = [place for place, (_, other) in enumerate(job) if other == device]
    gpus = (place for place, (_, other) in enumerate(job) if other.gpu.key == device.gpu.key)
    places = places or list(gpus)
    if not places:
        raise NoSuchGpuError(
            f"the caller's GPU {name} ({device.gpu.pci_bus_id}) is not among the job's: "
            + ", ".join(f"{name} ({other.gpu.pci_bus_id})" for name, other in job)
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
    return -(-each // ranks.gpus_per_task)


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
