"""How Slurm bound the tasks of a step: which of them have the same GPUs, and whose CPUs are whose.

Sources: srun(1), --gpu-bind, --gpus-per-task, --ntasks-per-gpu and --cpu-bind; what slurmstepd then
tells each task, in SLURMD_TRES_BIND and SLURM_CPU_BIND_LIST.
"""

from __future__ import annotations

from affinityd.cpuset import CpuSet

TYPE_CHECKING = False
if TYPE_CHECKING:  # exec starts without what costs as much as Python to import
    from collections.abc import Sequence

#: A task's place among those that have the same GPUs: which one, of how many.
Slot = tuple[int, int]

CLOSEST = "closest"
LARGEST = 4096  #: number of GPUs that a node may have
MAX_DIGITS = 10  #: of a number of tasks


def gpu_slot(bind: str, *, task: int, tasks: int, gpus: int, seen: int) -> Slot | None:
    """Return the slot of a local task; None where every task sees the same GPUs.

    `bind` is SLURMD_TRES_BIND, as in `gpu:single:2`; `gpus` is how many GPUs the step has on the
    node, `seen` how many of them the task sees: more than a binding gives it, and there is none.
    Where it is not known which tasks have GPUs in common, all of them might.
    """
    kind, argument = _kind(bind)
    if kind in {"none", CLOSEST}:  # where CPUs are not bound, all GPUs are equally close
        return None
    try:
        groups = _groups(kind, argument, tasks, gpus)
        given = _given(kind, argument, tasks, task)
    except (ValueError, ZeroDivisionError):  # what Slurm would not take
        return task, tasks
    if seen > given:
        return None
    return (task, tasks) if groups is None else _slot(groups, task)


def single_slot(
    bind: str,
    slices: Sequence[CpuSet],
    cores: Sequence[Sequence[CpuSet]],
    *,
    task: int,
    tasks: int,
) -> Slot | None:
    """Return the slot of a task that --gpu-bind=single:N gave one GPU; None for another binding.

    Slurm deals to a task the GPUs whose cores, as gres.conf has them, meet its slice of the CPUs:
    the first, where none do. `cores` are those of each GPU of the step, once for each way in which
    a gres.conf may have them, and tasks that have one GPU in any of these ways are kept apart.
    Source: Slurm's src/interfaces/gres.c, _get_usable_gres and _get_single_usable_gres.
    """
    kind, argument = _kind(bind)
    if kind != "single":
        return None
    if not (argument.isascii() and argument.isdecimal() and len(argument) < MAX_DIGITS):
        return task, tasks
    groups = list(range(tasks))
    for each in cores:
        near = [_meeting(each, cpus) or [0] for cpus in slices]
        first: dict[int, int] = {}
        for number in range(tasks):
            choice = near[number % len(near)]
            gpu = choice[number // max(int(argument), 1) % len(choice)]
            one, other = groups[first.setdefault(gpu, number)], groups[number]
            groups = [one if group == other else group for group in groups]
    return _slot(groups, task)


def _meeting(cores: Sequence[CpuSet], cpus: CpuSet) -> list[int]:
    """Return the places of the cores that have one of these CPUs."""
    meets = {it: not it.isdisjoint(cpus) for it in set(cores)}
    return [place for place, it in enumerate(cores) if meets[it]]


def slice_slot(
    bind: str, masks: Sequence[CpuSet], mask: CpuSet, *, task: int, tasks: int
) -> Slot | None:
    """Return the slot of a task on its slice, if its GPUs were chosen to be near that.

    Tasks with equal slices then have the same GPUs. None where the task may leave its slice.
    """
    if not _stays(bind, masks, mask, task):
        return None
    first = {mask: place for place, mask in reversed(list(enumerate(masks)))}
    places = [first[mask] for mask in masks]
    return _slot([places[number % len(places)] for number in range(tasks)], task)


def cpus_of_step(bind: str, masks: Sequence[CpuSet], mask: CpuSet, task: int) -> CpuSet:
    """Return what to plan a task on: the slices of all tasks of its step, if it may leave its own.

    `mask` is what it runs on now: if that is not in its slice, the masks are those of another step,
    from which it inherited them. With fewer masks than tasks, they count again from the first.
    """
    if _stays(bind, masks, mask, task) or not _is_slice(masks, mask, task):
        return mask
    return frozenset().union(*masks)


def _stays(bind: str, masks: Sequence[CpuSet], mask: CpuSet, task: int) -> bool:
    return _kind(bind)[0] == CLOSEST and _is_slice(masks, mask, task)


def _is_slice(masks: Sequence[CpuSet], mask: CpuSet, task: int) -> bool:
    return bool(masks) and mask <= masks[task % len(masks)]


def _kind(bind: str) -> tuple[str, str]:
    """Read `gpu:verbose,single:2`, or what newer releases write: `gres/gpu:single:2+gres/nic:…`."""
    names = (part.removeprefix("gres/").partition(":") for part in bind.split("+"))
    ours = next((rest for name, _, rest in names if name == "gpu"), bind or "none")
    kind, _, argument = ours.removeprefix("verbose,").removeprefix("v,").partition(":")
    return kind, argument


def _slot(groups: Sequence[int], task: int) -> Slot:
    """Return a task's slot, by a number for each task that is equal for those that have the same.

    As many slots for everybody as the largest group has: each task finds the same ones.
    """
    most = max(map(groups.count, set(groups)))
    return groups[:task].count(groups[task]), most


def _given(kind: str, argument: str, tasks: int, task: int) -> int:
    """Return how many GPUs a binding gives a task. Raises ValueError."""
    if kind == "per_task":
        return int(argument.rpartition(":")[2])  # TYPE:1 or 1
    if kind == "mask_gpu":
        masks = _entries(argument, 16, tasks)
        return masks[task % len(masks)].bit_count()
    return 1 if kind in {"single", "map_gpu"} else LARGEST


def _groups(kind: str, argument: str, tasks: int, gpus: int) -> Sequence[int] | None:
    """Return for each task a number that stands for its GPUs; None where that is not known.

    Raises ValueError or ZeroDivisionError.
    """
    if kind == "per_task":
        return range(tasks)
    if kind == "single":
        return [task // int(argument) % gpus for task in range(tasks)]
    if kind not in {"map_gpu", "mask_gpu"}:
        return None
    entries = _entries(argument, 10 if kind == "map_gpu" else 16, tasks)
    groups = [entries[task % len(entries)] for task in range(tasks)]
    different = set(groups)
    if kind == "mask_gpu" and any(a & b for a in different for b in different if a != b):
        return None  # some have GPUs in common, but not all
    return groups


def _entries(text: str, base: int, tasks: int) -> list[int]:
    """Read a comma list in which `3*2` is 3 twice, as far as tasks go. Raises ValueError."""
    entries: list[int] = []
    for entry in text.split(","):
        number, _, times = entry.partition("*")
        entries += [int(number, base)] * min(int(times or 1), tasks)
        if len(entries) >= tasks:
            break
    return entries
