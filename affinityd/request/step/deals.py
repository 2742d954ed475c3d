"""Which GPUs Slurm gave each task of a step: a deal for each way that it may have gone. Pure.

A binding does not tell it alone: releases deal differently, and by the cores that gres.conf has.

Sources: Slurm's _get_usable_gres and what that calls, in src/interfaces/gres.c of 23.02, 23.11 and
26.05, and in src/common/gres.c of 22.05. Only from 23.11 on `gres/` begins a binding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from affinityd.cpuset import CpuSet

if TYPE_CHECKING:
    #: For each task of a step the places of its GPUs among the step's.
    Deal = Sequence[frozenset[int]]
    #: For each GPU of a step the CPUs that a gres.conf has for it.
    GpuCores = Sequence[CpuSet]
    #: Deals so many GPUs to a task, or one GPU to so many tasks, by each task's slice.
    Dealer = Callable[[int, Sequence[CpuSet], GpuCores], Deal]

CLOSEST, PER_TASK, SINGLE = "closest", "per_task", "single"
BASES = {"map_gpu": 10, "mask_gpu": 16, "map": 10, "mask": 16}  #: of the numbers in a list
LARGEST = 256  #: number of GPUs that a node may have


@dataclass(frozen=True)
class GpuBinding:
    """SLURMD_TRES_BIND: `gpu:verbose,single:2`, from 23.11 on `gres/gpu:single:2+gres/nic:…`."""

    kind: str  #: `none` where tasks are not bound
    argument: str
    is_new: bool

    @property
    def number(self) -> int:
        """The number of TYPE:1, or of 1, as far as a node has GPUs. Raises ValueError."""
        return min(int(self.argument.rpartition(":")[2]), LARGEST)


def parse_binding(text: str) -> GpuBinding:
    """Return the binding to GPUs."""
    names = (part.removeprefix("gres/").partition(":") for part in text.split("+"))
    ours = next((rest for name, _, rest in names if name == "gpu"), text or "none")
    kind, _, argument = ours.removeprefix("verbose,").removeprefix("v,").partition(":")
    return GpuBinding(kind, argument, "gres/" in text)


def deals(
    binding: GpuBinding, slices: Sequence[CpuSet], ways: Sequence[GpuCores], indices: Sequence[int]
) -> list[Deal]:
    """Return the deals that a binding may be, to tasks with these slices; []: it is not known.

    `ways` are the forms that a gres.conf may have, `indices` the numbers of the step's GPUs on the
    node. Raises ValueError or ZeroDivisionError for a binding that Slurm would refuse.
    """
    if binding.kind in BASES:
        entries = _entries(binding.argument, BASES[binding.kind], len(slices))
        given = {entry: _places(binding.kind, entry) for entry in entries}
        dealt = [given[entries[task % len(entries)]] for task in range(len(slices))]
        return [dealt, *_by_index(dealt, indices)]
    dealers = DEALERS.get((binding.kind, binding.is_new), ())
    return [deal(binding.number, slices, cores) for deal in dealers for cores in ways]


def _places(kind: str, entry: int) -> frozenset[int]:
    if kind.startswith("map"):
        return frozenset((entry,))
    return frozenset(bit for bit in range(min(entry.bit_length(), LARGEST)) if entry >> bit & 1)


def _by_index(dealt: Deal, indices: Sequence[int]) -> list[Deal]:
    """Return the meaning of a list where devices are not constrained: it has the node's numbers."""
    place = {index: place for place, index in enumerate(indices)}
    is_meant = all(its <= place.keys() for its in dealt)
    return [[frozenset(map(place.__getitem__, its)) for its in dealt]] if is_meant else []


def _in_turn(each: int, slices: Sequence[CpuSet], cores: GpuCores) -> Deal:
    """`single` of 22.05: the GPUs near a task's slice to so many tasks each; none: the first."""
    near = {cpus: _meeting(cores, cpus) or [0] for cpus in set(slices)}
    return [
        frozenset((near[cpus][task // each % len(near[cpus])],)) for task, cpus in enumerate(slices)
    ]


def _by_slots(each: int, slices: Sequence[CpuSet], cores: GpuCores) -> Deal:
    """`single` from 23.02 on: the first GPU that has a place left, near ones before others."""
    free = [max(each, 1)] * len(cores)
    dealt = []
    for task, cpus in enumerate(slices):
        left = [place for place, slots in enumerate(free) if slots]
        whole = (place for place in left if cores[place] <= cpus)
        partly = (place for place in left if not cores[place].isdisjoint(cpus))
        place = next(whole, next(partly, left[0] if left else task % len(cores)))
        free[place] -= bool(left)
        dealt.append(frozenset((place,)))
    return dealt


def _in_order(each: int, slices: Sequence[CpuSet], _cores: GpuCores) -> Deal:
    """`per_task` to 23.02: the first task has the first GPUs."""
    return [_own(each, task) for task in range(len(slices))]


def _nearest_first(each: int, slices: Sequence[CpuSet], cores: GpuCores) -> Deal:
    """`per_task` from 23.11 on: of the GPUs that are left, those near a task's slice first."""
    left, dealt = list(range(len(cores))), []
    for task, cpus in enumerate(slices):
        far = {place: cores[place].isdisjoint(cpus) for place in left}
        given = sorted(left, key=far.__getitem__)[:each]
        left = [place for place in left if place not in given]
        dealt.append(frozenset(given) or _own(each, task))
    return dealt


def _own(each: int, task: int) -> frozenset[int]:
    return frozenset(range(task * each, min((task + 1) * each, LARGEST)))


#: By kind, and whether Slurm is 23.11 or newer.
DEALERS: dict[tuple[str, bool], tuple[Dealer, ...]] = {
    (SINGLE, False): (_in_turn, _by_slots),
    (SINGLE, True): (_by_slots,),
    (PER_TASK, False): (_in_order,),
    (PER_TASK, True): (_nearest_first,),
}


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
