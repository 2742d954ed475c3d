"""Which GPU each rank of a request drives, and which ranks the answer is for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from affinityd.cpuset import CpuSet, several
from affinityd.errors import InvalidRequestError, NoSuchGpuError
from affinityd.planner import BY_RANK
from affinityd.planner.modes import MODES
from affinityd.request.devices import (
    ComputeDevice,
    VisibleDevices,
    all_devices,
    is_ambiguous,
    select_devices,
)
from affinityd.request.parameters import Request
from affinityd.request.parsers import MAX_ENTRIES
from affinityd.request.slurm_binding import deals_of, is_closest
from affinityd.request.step.shares import Dealt
from affinityd.request.step.slots import slots
from affinityd.request.visible_devices import visible_devices
from affinityd.topology.model import Gpu, Topology

if TYPE_CHECKING:
    from affinityd.request.step.deals import Deal
    from affinityd.request.step.slots import Slot

#: How a request names a device, or would have, and the device.
Entry = tuple[str, ComputeDevice]


@dataclass(frozen=True)
class Ranks:
    """The ranks that divide the cores."""

    entries: tuple[Entry, ...]  #: rank i drives the i-th
    asked: frozenset[int]  #: the requested ranks
    ambiguous: bool  #: an index depends on CUDA_DEVICE_ORDER
    gpus_per_task: int  #: how many ranks of the plan one task is
    tasks_per_gpu: int  #: how many tasks one rank of the plan stands for
    of_step: tuple[Gpu, ...] = ()  #: the GPUs of the task's step, in its order; (): unknown
    #: For each deal of these that may be, each task's GPUs and ranks; (): unknown.
    deals: tuple[tuple[Dealt, ...], ...] = ()

    @property
    def own(self) -> Ranks:
        """The requested ranks as if there were no others, a GPU each."""
        devices = {self.entries[rank][1]: self.entries[rank] for rank in sorted(self.asked)}
        count = len(devices)
        asked = frozenset(range(count))
        return replace(
            self, entries=(*devices.values(),), asked=asked, gpus_per_task=count, tasks_per_gpu=1
        )

    def of_tasks(self, tasks: Collection[int]) -> Ranks:
        """Return the ranks of some tasks, the caller among them, as if there were no others."""
        ranks = sorted(rank for task in tasks for rank in self.deals[0][task].ranks)
        asked = frozenset(ranks.index(rank) for rank in self.asked)
        return replace(self, entries=tuple(self.entries[rank] for rank in ranks), asked=asked)

    def is_certain(self, task: int) -> bool:
        """Return whether each task's GPUs are known, those of the caller's task as they are."""
        return len(set(self.deals)) == 1 and self.deals[0][task] == self.dealt

    @property
    def dealt(self) -> Dealt:
        """The GPUs and ranks that the caller was dealt."""
        keys = {gpu.key for gpu in self.own.gpus}
        places = frozenset(place for place, gpu in enumerate(self.of_step) if gpu.key in keys)
        known = (it for deal in self.deals for it in deal if it.ranks == self.asked)
        return next(known, Dealt(self.asked, places))

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPU of each rank."""
        return tuple(device.gpu for _, device in self.entries)


def ranks_of(topology: Topology, request: Request, mask: CpuSet, cpus: CpuSet) -> Ranks:
    """Return the ranks of a request, from a caller that runs on `mask`, to be planned on `cpus`.

    They are its `gpus`, dealt again from the first if there are more `ranks` than GPUs. Or,
    for a task of a job: the job's GPUs, each as often as tasks share one. Raises
    InvalidRequestError for a rank that is not there, NoSuchGpuError for a device that is not here,
    or not the job's.
    """
    seen = visible_devices(topology, request)
    own = _named(seen, request.gpus)
    ambiguous = is_ambiguous(seen, request.gpus)
    all_gpus = all_devices(topology)
    job = None if request.job is None else _of_job(all_gpus, request.job)
    of_step = job if job and len(job) == request.step_gpus else ()
    bound = _bound(topology, request, mask, len(own), of_step)
    if (job is None and bound is None) or (
        request.ranks is not None and request.options.mode in BY_RANK
    ):
        return _by_number(request, own, ambiguous=ambiguous)
    ambiguous = ambiguous or is_ambiguous(all_gpus, request.job)
    if job is None or _has_cpus_of_its_own(request, cpus, len(own)):
        job, of_step = own, own if len(own) == len(of_step) else ()
    task, mine = request.rank[0] if request.ranks and request.rank else 0, own
    if bound is None and request.ranks is not None:  # all tasks see the same, and take turns
        bound, of_step, mine = _turns(request.ranks, len(own)), own, own[task % len(own) :][:1]
    slot_of = slots(bound or [], request.ranks or 1)
    (number, of), tasks = slot_of[task], 1
    if MODES[request.options.mode].shares:
        number, of, tasks = 0, 1, of
    places = [frozenset(place * of for place in _places(entry, job)) for entry in of_step]
    is_dealt = not MODES[request.options.mode].shares and not is_closest(request)
    deals = [deal for deal in bound or () if is_dealt and _fits(deal, places)]
    return Ranks(
        entries=_checked(tuple(entry for entry in job for _ in range(of))),
        asked=frozenset(place * of + number for entry in mine for place in _places(entry, job)),
        ambiguous=ambiguous,
        gpus_per_task=len(mine),
        tasks_per_gpu=tasks,
        of_step=tuple(device.gpu for _, device in of_step),
        deals=tuple(_dealt(deal, slot_of, places) for deal in deals),
    )


def _by_number(request: Request, own: tuple[Entry, ...], *, ambiguous: bool) -> Ranks:
    """Return the ranks of a request that are not told apart by their GPUs."""
    ranks = tuple(own[rank % len(own)] for rank in range(request.ranks or len(own)))
    says_cpus = request.task_cpus is not None and request.task_cpus.cpus is not None
    is_one = request.ranks is not None or (request.rank is not None and says_cpus)
    gpus = 1 if is_one else len(own)
    turns = _turns(request.ranks or 0, len(own))
    return Ranks(
        _checked(ranks),
        asked_ranks(request.rank, len(ranks)),
        ambiguous,
        gpus_per_task=gpus,
        tasks_per_gpu=1,
        of_step=tuple(device.gpu for _, device in own),
        deals=(tuple(Dealt(frozenset((task,)), it) for task, it in enumerate(turns[0])),),
    )


def _turns(tasks: int, gpus: int) -> list[Deal]:
    """Return the one deal of GPUs to tasks that all see the same ones."""
    return [[frozenset((task % gpus,)) for task in range(tasks)]]


def _fits(deal: Deal, places: Sequence[frozenset[int]]) -> bool:
    return frozenset().union(*deal) <= frozenset(range(len(places)))


def _dealt(
    deal: Deal, slot_of: Sequence[Slot], places: Sequence[frozenset[int]]
) -> tuple[Dealt, ...]:
    """Return each task's GPUs and ranks: its slot of those that each GPU has from `places` on."""
    return tuple(
        Dealt(frozenset(first + slot for gpu in gpus for first in places[gpu]), gpus)
        for gpus, (slot, _) in zip(deal, slot_of, strict=True)
    )


def _has_cpus_of_its_own(request: Request, cpus: CpuSet, seen: int) -> bool:
    """Return whether a step that has some of the job's GPUs has its own part of the CPUs, too.

    Then the job's other GPUs have no part in them (srun --exact).
    """
    return len(cpus) < (request.job_cpus or 0) and seen == request.step_gpus


def _bound(
    topology: Topology, request: Request, mask: CpuSet, seen: int, of_step: tuple[Entry, ...]
) -> list[Deal] | None:
    """Return how Slurm may have dealt GPUs to the tasks; None where tasks deal them out."""
    if request.ranks is not None:
        asked_ranks(request.rank, request.ranks)
    if request.ranks is None or not request.gpu_bind:
        return None
    gpus = tuple(device.gpu for _, device in of_step)
    cores, indices = cores_in_gres_conf(topology, gpus), [gpu.index for gpu in gpus]
    dealt = deals_of(request, mask, seen=seen, cores=cores, indices=indices)
    # The GPUs it names divide all cores, also those of its siblings, which are unknown.
    is_alone = dealt is not None and request.job is None and request.options.share == "requested"
    return [] if is_alone else dealt


def cores_in_gres_conf(topology: Topology, gpus: Sequence[Gpu]) -> list[tuple[CpuSet, ...]]:
    """Return the CPUs of each GPU, for each form that a gres.conf may have."""
    return [*zip(*(_cores_in_gres_conf(topology, gpu) for gpu in gpus), strict=True)]


def _cores_in_gres_conf(topology: Topology, gpu: Gpu) -> tuple[CpuSet, CpuSet, CpuSet]:
    """Return the CPUs that a gres.conf may have for a GPU: all, its node's, its package's."""
    near = topology.cpus_of_node(gpu.numa_node) or topology.online
    packages = {core.package for core in topology.cores if near & set(core.cpus)}
    beside = (core.cpus for core in topology.cores if core.package in packages)
    return topology.online, near, frozenset().union(*beside)


def _named(seen: VisibleDevices, names: tuple[str, ...] | None) -> tuple[Entry, ...]:
    if names is None:
        return tuple(zip(map(str, seen.by_index), select_devices(seen, None), strict=True))
    different = tuple(dict.fromkeys(names))  # each rank of a large job names its GPU
    device = dict(zip(different, select_devices(seen, different), strict=True))
    return tuple((name, device[name]) for name in names)


def _of_job(all_gpus: VisibleDevices, names: tuple[str, ...] | None) -> tuple[Entry, ...]:
    try:
        return _named(all_gpus, names)
    except (InvalidRequestError, NoSuchGpuError) as error:
        raise type(error)(f"job: {error}") from None


def _checked(ranks: tuple[Entry, ...]) -> tuple[Entry, ...]:
    if len(ranks) > MAX_ENTRIES:
        raise InvalidRequestError(f"{len(ranks)} GPUs are too many; the most is {MAX_ENTRIES}")
    return ranks


def asked_ranks(asked: Sequence[int] | None, count: int) -> frozenset[int]:
    """Return the requested ones of so many ranks; None: all. Raises InvalidRequestError."""
    if asked is None:
        return frozenset(range(count))
    beyond = [rank for rank in asked if rank >= count]
    if beyond:
        raise InvalidRequestError(
            f"rank: there is no rank {beyond[0]}; the request has {several('rank', range(count))}"
        )
    return frozenset(asked)


def _places(own: Entry, job: Sequence[Entry]) -> list[int]:
    """Return where a device is in a job's list: itself, else its GPU. Raises NoSuchGpuError."""
    name, device = own
    itself = [place for place, (_, theirs) in enumerate(job) if theirs == device]
    gpus = (place for place, (_, theirs) in enumerate(job) if theirs.gpu.key == device.gpu.key)
    places = itself or list(gpus)
    if not places:
        raise NoSuchGpuError(
            f"job: the caller's GPU {name} ({device.gpu.pci_bus_id}) is not among the job's: "
            + ", ".join(f"{name} ({theirs.gpu.pci_bus_id})" for name, theirs in job)
        )
    return places
