"""How Slurm bound the tasks of a step: which tasks have the same GPUs, and each task's CPUs.

Sources: srun(1), --gpu-bind, --gpus-per-task, --ntasks-per-gpu and --cpu-bind; what slurmstepd then
tells each task, in SLURMD_TRES_BIND and SLURM_CPU_BIND_LIST.
"""

from __future__ import annotations

from affinityd.cpuset import CpuSet
from affinityd.request.parameters import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    #: For each GPU of a step the CPUs that a gres.conf has for it.
    GpuCores = Sequence[CpuSet]
    #: For each slice of the CPUs the places of the GPUs that Slurm takes for near to it.
    NearGpus = Sequence[Sequence[int]]

#: A task's place among the tasks with the same GPUs: its number, and theirs.
Slot = tuple[int, int]

CLOSEST = "closest"
SINGLE = "single"
LARGEST = 4096  #: number of GPUs that a node may have


def gpu_slot(
    request: Request,
    mask: CpuSet,
    *,
    task: int,
    tasks: int,
    seen: int,
    cores: Sequence[GpuCores] = (),
) -> Slot | None:
    """Return the slot of a local task on its GPUs; None where every task sees the same ones.

    It runs on `mask` and sees so many GPUs; if more than a binding gives it, there is none.
    `cores` are those of the step's GPUs, for each form that a gres.conf may have.
    If it is unknown which tasks share GPUs, all of them might.
    """
    kind, argument = _kind(request.gpu_bind)
    masks = request.cpu_bind
    if kind == CLOSEST and _is_slice(request, mask):  # tasks with equal slices have the same GPUs
        places = {slice_: place for place, slice_ in enumerate(masks)}
        return _slot([places[masks[it % len(masks)]] for it in range(tasks)], task)
    if kind in {"none", CLOSEST}:  # where CPUs are not bound, all GPUs are equally close
        return None
    ways = [_near_gpus(each, masks or [mask]) for each in cores]
    try:
        groups, given = _bound(
            kind, argument, task, tasks, ways or [[range(request.step_gpus or 0)]]
        )
    except (ValueError, ZeroDivisionError):  # Slurm would refuse it
        return task, tasks
    if seen > given:
        return None
    return (task, tasks) if groups is None else _slot(groups, task)


def cpus_of_step(request: Request, mask: CpuSet) -> CpuSet:
    """Return the CPUs to plan a task on: all slices of its step, if it may leave its own.

    It stays where its GPUs were chosen to be near its slice, and where `mask`, its current CPUs,
    is not in that: then the masks are those of another step, from which it inherited them. With
    fewer masks than tasks, they count again from the first.
    """
    stays = _kind(request.gpu_bind)[0] == CLOSEST or not _is_slice(request, mask)
    return mask if stays else frozenset().union(*request.cpu_bind)


def own_slice(request: Request, mask: CpuSet) -> CpuSet | None:
    """Return the slice of the caller's task; None: it may leave it, or another task is on it."""
    masks, tasks, task = (
        request.cpu_bind,
        request.ranks or 1,
        request.rank[0] if request.rank else 0,
    )
    if not _is_slice(request, mask) or not task < tasks <= len(masks):
        return None
    others = (masks[it] for it in range(tasks) if it != task)
    return masks[task] if all(map(masks[task].isdisjoint, others)) else None


def chose_gpus(request: Request) -> str | None:
    """Return the word for how Slurm chose a task's GPUs by its slice; None: it did not."""
    kind, _ = _kind(request.gpu_bind)
    return kind if kind in {CLOSEST, SINGLE} else None


def kept_by_others(request: Request, gpu: int, cores: Sequence[GpuCores], near: GpuCores) -> CpuSet:
    """Return the slices of other tasks of the step that may be near the GPU of their task.

    By `single`, in each way in which the caller's task is given the GPU at its place `gpu`; `near`
    are the CPUs near each GPU of the step. The others as in `gpu_slot`.
    """
    masks, each = request.cpu_bind, int(_kind(request.gpu_bind)[1])
    kept: CpuSet = frozenset()
    for way in cores:
        choices = _near_gpus(way, masks)
        places = [_single(choices, task, each) for task in range(request.ranks or 0)]
        if request.rank and places[request.rank[0]] == gpu:
            kept = kept.union(
                *(
                    masks[task]
                    for task, place in enumerate(places)
                    if task not in request.rank and masks[task] <= near[place]
                )
            )
    return kept


def _is_slice(request: Request, mask: CpuSet) -> bool:
    masks, task = request.cpu_bind, request.rank[0] if request.rank else 0
    return bool(masks) and mask <= masks[task % len(masks)]


def _kind(bind: str) -> tuple[str, str]:
    """Read `gpu:verbose,single:2`, or the newer releases' `gres/gpu:single:2+gres/nic:…`."""
    names = (part.removeprefix("gres/").partition(":") for part in bind.split("+"))
    ours = next((rest for name, _, rest in names if name == "gpu"), bind or "none")
    kind, _, argument = ours.removeprefix("verbose,").removeprefix("v,").partition(":")
    return kind, argument


def _slot(groups: Sequence[int], task: int) -> Slot:
    """Return a task's slot, by a number for each task; tasks with the same GPUs have the same.

    Every group has as many slots as the largest group has: each task finds the same ones.
    """
    most = max(map(groups.count, set(groups)))
    return groups[:task].count(groups[task]), most


def _bound(
    kind: str, argument: str, task: int, tasks: int, ways: Sequence[NearGpus]
) -> tuple[Sequence[int] | None, int]:
    """Return for each task a number that stands for its GPUs, and how many GPUs `task` is given.

    None if it is unknown which have the same. Raises ValueError or ZeroDivisionError.
    """
    if kind == "per_task":
        return range(tasks), int(argument.rpartition(":")[2])  # TYPE:1 or 1
    if kind == "single":
        return _dealt(int(argument), tasks, ways), 1
    if kind not in {"map_gpu", "mask_gpu"}:
        return None, LARGEST
    entries = _entries(argument, 10 if kind == "map_gpu" else 16, tasks)
    groups = [entries[number % len(entries)] for number in range(tasks)]
    if kind == "map_gpu":
        return groups, 1
    different = set(groups)  # some may have GPUs in common, but not all
    is_mixed = any(one & other for one in different for other in different if one != other)
    return None if is_mixed else groups, groups[task].bit_count()


def _dealt(each: int, tasks: int, ways: Sequence[NearGpus]) -> list[int]:
    """Return a number for each task, equal for tasks that have one GPU in any of these ways.

    Slurm deals the GPUs near a task's slice to so many tasks `each`, one after the other; if none
    is near, the first GPUs. Source: its src/interfaces/gres.c, _get_usable_gres and
    _get_single_usable_gres.
    """
    groups = list(range(tasks))
    for near in ways:
        first: dict[int, int] = {}
        for task in range(tasks):
            gpu = _single(near, task, each)
            one, other = groups[first.setdefault(gpu, task)], groups[task]
            groups = [one if group == other else group for group in groups]
    return groups


def _single(near: NearGpus, task: int, each: int) -> int:
    """Return the place of the GPU that a task is given."""
    choice = near[task % len(near)]
    return choice[task // each % len(choice)]


def _near_gpus(cores: GpuCores, masks: Sequence[CpuSet]) -> NearGpus:
    return [_meeting(cores, cpus) or [0] for cpus in masks]


def _meeting(cores: GpuCores, cpus: CpuSet) -> list[int]:
    """Return the places of the cores that have one of these CPUs."""
    meets = {it: not it.isdisjoint(cpus) for it in set(cores)}
    return [place for place, it in enumerate(cores) if meets[it]]


def _entries(text: str, base: int, tasks: int) -> list[int]:
    """Read a comma list in which `3*2` is 3 twice, as far as tasks go. Raises ValueError."""
    entries: list[int] = []
    for entry in text.split(","):
        number, _, times = entry.partition("*")
        entries += [int(number, base)] * min(int(times or 1), tasks)
        if len(entries) >= tasks:
            break
    return entries
