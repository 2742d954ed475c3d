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
Seat = tuple[int, int]

CLOSEST = "closest"
COUNTED = frozenset(("single", "map_gpu", "per_task"))  #: say how many GPUs a task sees
LARGEST = 4096  #: number of times that an entry of a map counts: more tasks than a node has


def gpu_seat(bind: str, *, task: int, tasks: int, gpus: int, seen: int) -> Seat | None:
    """Return the seat of a local task; None where every task sees the same GPUs.

    `bind` is SLURMD_TRES_BIND, as in `gpu:single:2`; `gpus` is how many GPUs the step has on the
    node, `seen` how many of them the task sees: more than a binding gives it, and there is none.
    Where it is not known which tasks have GPUs in common, all of them might.
    """
    kind, argument = _kind(bind)
    if kind in {"none", CLOSEST}:  # where CPUs are not bound, all GPUs are equally close
        return None
    try:
        groups = _groups(kind, argument, tasks, gpus)
        given = int(argument.rpartition(":")[2]) if kind == "per_task" else 1  # TYPE:1 or 1
    except (ValueError, ZeroDivisionError):  # what Slurm would not take
        return task, tasks
    if kind in COUNTED and seen > given:
        return None
    return (task, tasks) if groups is None else _seat(groups, task)


def slice_seat(
    bind: str, masks: Sequence[CpuSet], mask: CpuSet, *, task: int, tasks: int
) -> Seat | None:
    """Return the seat of a task on its slice, if its GPUs were chosen to be near that.

    Tasks with equal slices then have the same GPUs. None where the task may leave its slice.
    """
    if not _stays(bind, masks, mask, task):
        return None
    return _seat([masks[number % len(masks)] for number in range(tasks)], task)


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


def _seat(groups: Sequence[object], task: int) -> Seat:
    """Return a task's seat, by what is equal for tasks that have the same.

    As many seats for everybody as the largest group has: each task finds the same ones.
    """
    before = sum(groups[task] == group for group in groups[:task])
    return before, max(sum(group == other for other in groups) for group in groups)


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
    entries = _entries(argument, 10 if kind == "map_gpu" else 16)
    groups = [entries[task % len(entries)] for task in range(tasks)]
    different = set(groups)
    if kind == "mask_gpu" and any(a & b for a in different for b in different if a != b):
        return None  # some have GPUs in common, but not all
    return groups


def _entries(text: str, base: int) -> list[int]:
    """Read a comma list in which `3*2` is 3 twice. Raises ValueError."""
    entries: list[int] = []
    for entry in text.split(","):
        number, _, times = entry.partition("*")
        entries += [int(number, base)] * min(int(times or 1), LARGEST)
    return entries
