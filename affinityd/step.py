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

LARGEST = 4096  #: number of times that an entry of a map counts: more tasks than a node has


def gpu_seat(bind: str, task: int, tasks: int, gpus: int) -> Seat | None:
    """Return the seat of a local task; None where every task sees all GPUs of the step.

    `bind` is SLURMD_TRES_BIND, as in `gpu:single:2`; `gpus` is how many GPUs the step has on the
    node. Where it is not known which tasks have GPUs in common, all of them might.
    """
    kind, argument = _kind(bind)
    if kind in {"none", "closest"}:  # where CPUs are not bound, all of them are equally close
        return None
    if kind == "per_task":
        return 0, 1
    groups = _groups(kind, argument, tasks, gpus)
    return (task, tasks) if groups is None else _seat(groups, task)


def standing(
    bind: str, masks: Sequence[CpuSet], mask: CpuSet, *, task: int, tasks: int, gpus: int
) -> tuple[CpuSet, Seat | None]:
    """Return the CPUs to plan a local task on, and its seat.

    `masks` are the slices of the step's CPUs that its tasks were given; a task may leave its own,
    unless its GPUs were chosen to be near it. `mask` is what it runs on now: if that is not its
    slice, the masks are those of another step, from which it inherited them.
    """
    seat = gpu_seat(bind, task, tasks, gpus)
    if task >= len(masks) or masks[task] != mask:
        return mask, seat
    if _kind(bind)[0] == "closest":
        return mask, _seat(masks, task)
    return frozenset().union(*masks), seat


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
    return groups[:task].count(groups[task]), max(groups.count(group) for group in groups)


def _groups(kind: str, argument: str, tasks: int, gpus: int) -> list[int] | None:
    """Return for each task a number that stands for its GPUs; None where that is not known."""
    try:
        if kind == "single":
            return [task // int(argument) % gpus for task in range(tasks)]
        if kind not in {"map_gpu", "mask_gpu"}:
            return None
        entries = _entries(argument, 10 if kind == "map_gpu" else 16)
    except (ValueError, ZeroDivisionError):
        return None
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
