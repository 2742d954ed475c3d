"""How Slurm bound the tasks of a step: the GPUs that each may have, and its CPUs. Pure.

Sources: srun(1), --gpu-bind, --gpus-per-task, --ntasks-per-gpu and --cpu-bind; what slurmstepd then
tells each task, in SLURMD_TRES_BIND and SLURM_CPU_BIND_LIST.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from affinityd.cpuset import CpuSet
from affinityd.grouping import counted
from affinityd.planner.domains import single_bundles, usable
from affinityd.planner.modes import Position, blocks
from affinityd.request.parameters import Request
from affinityd.request.step.deals import CLOSEST, LARGEST, deals, parse_binding

if TYPE_CHECKING:
    from affinityd.request.step.deals import Deal, GpuCores
    from affinityd.topology.model import Core

#: Where nothing is known of cores: all are near.
ANY = frozenset({0})


def deals_of(
    request: Request,
    mask: CpuSet,
    *,
    seen: int,
    cores: Sequence[GpuCores] = (),
    indices: Sequence[int] = (),
) -> list[Deal] | None:
    """Return how Slurm may have dealt the step's GPUs; None where every task sees the same ones.

    The caller runs on `mask` and sees so many GPUs; if more than a binding gives it, there is none.
    `cores` and `indices` are those of the step's GPUs, `cores` for each form that a
    gres.conf may have. []: any deal may be.
    """
    binding, masks = parse_binding(request.gpu_bind), request.cpu_bind or (mask,)
    tasks, (task, *_) = request.ranks or 1, request.rank or (0,)
    if binding.kind == CLOSEST and is_on_slice(request, mask):  # equal slices have the same GPUs
        return [[frozenset((masks.index(masks[it % len(masks)]),)) for it in range(tasks)]]
    if binding.kind in {"none", CLOSEST}:  # where CPUs are not bound, all GPUs are equally close
        return None
    slices = (slices_of(request) or [mask] * tasks) if cores else [ANY] * tasks
    ways = cores or [[ANY] * min(request.step_gpus or 0, LARGEST)]
    try:
        dealt = deals(binding, slices, ways, indices)
    except (ValueError, ZeroDivisionError):  # Slurm would refuse it
        return []
    return None if dealt and seen > max(len(deal[task]) for deal in dealt) else dealt


def cpus_of_step(request: Request, mask: CpuSet) -> CpuSet:
    """Return the CPUs to plan a task on: all slices of its step, if it may leave its own.

    It stays where its GPUs were chosen to be near its slice, and where `mask`, its current CPUs,
    is not in that: then the masks are those of another step, from which it inherited them. With
    fewer masks than tasks, they count again from the first.
    """
    stays = is_closest(request) or not is_on_slice(request, mask)
    return mask if stays else frozenset().union(*request.cpu_bind)


def is_closest(request: Request) -> bool:
    """Return whether each task has the GPUs near its slice."""
    return parse_binding(request.gpu_bind).kind == CLOSEST


def is_on_slice(request: Request, mask: CpuSet) -> bool:
    """Return whether a caller with this mask is bound to its slice of its step."""
    masks, task = request.cpu_bind, request.rank[0] if request.rank else 0
    return bool(masks) and mask <= masks[task % len(masks)]


def own_slices(request: Request) -> list[CpuSet]:
    """Return the slice of each task; no CPU: another task has some of it."""
    slices = slices_of(request)
    holders = counted(chain.from_iterable(slices))
    return [it if all(holders[cpu] == 1 for cpu in it) else frozenset() for it in slices]


def parts_of_slices(request: Request, cores: Sequence[Core]) -> list[CpuSet]:
    """Return for each task CPUs that no other has: its part of its slice, by cores."""
    slices = slices_of(request)
    domain = {it: single_bundles(its) for it, its in _exclusive(slices, cores).items()}
    parts = []
    for task, slice_ in enumerate(slices):
        position = Position(slices[:task].count(slice_), slices.count(slice_), 0, balanced=False)
        part = blocks(domain[slice_], position)
        parts.append(frozenset(cpu for (core,) in part for cpu in core.cpus))
    return parts


def _exclusive(slices: Sequence[CpuSet], cores: Sequence[Core]) -> Mapping[CpuSet, Sequence[Core]]:
    """Return the cores of each slice, without CPUs that another slice has, too."""
    distinct = dict.fromkeys(slices)
    holders = counted(chain.from_iterable(distinct))
    only = {it: frozenset(cpu for cpu in it if holders[cpu] == 1) for it in distinct}
    holder = {cpu: slice_ for slice_, cpus in only.items() for cpu in cpus}
    there: dict[CpuSet, list[Core]] = {it: [] for it in distinct}
    for core in cores:
        for slice_ in {holder[cpu] for cpu in core.cpus if cpu in holder}:
            there[slice_].append(core)
    return {it: usable(its, only[it]) for it, its in there.items()}


def slices_of(request: Request) -> list[CpuSet]:
    """Return the slice of each task: with fewer masks than tasks, they count again."""
    masks = request.cpu_bind
    return [masks[task % len(masks)] for task in range(request.ranks or 1)] if masks else []
