"""The share of each task of a step: its slice, or its part of the near cores. Pure.

A task keeps a slice that is near. Others have their part of a division, without the slices that are
kept; a task to which that leaves too little keeps its slice, too, near or not. What then is in
no part goes to the task on whose slice it is, if it is near.

Tasks plan one by one, and each finds the same: a task knows its own GPUs, and those that the others
may have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from affinityd.cpuset import CpuSet

if TYPE_CHECKING:
    Place = tuple[int, "Dealt"]  #: a task, and its GPUs


@dataclass(frozen=True)
class Dealt:
    """A task's ranks in the division, and its GPUs."""

    ranks: frozenset[int]
    gpus: frozenset[int]  #: their places among the step's


@dataclass(frozen=True)
class StepShares:
    """The tasks of a step, as each of them knows it."""

    own: Sequence[CpuSet]  #: each task's slice; no CPU: another task has some of it
    last: Sequence[CpuSet]  #: its slice, or a part of a common one: no other task takes of it
    deals: Sequence[Sequence[Dealt]]  #: for each deal that may be, what each task has
    near: Callable[[Dealt], Sequence[CpuSet]]  #: the CPUs near each of a task's GPUs
    part: Callable[[Dealt], CpuSet]  #: its CPUs by the division
    suffices: Callable[[CpuSet], bool]  #: whether a task can run on these

    def share(self, task: int, dealt: Dealt) -> CpuSet:
        """Return the CPUs of a task, which knows what it was dealt."""
        if self._is_near(task, dealt):
            return self.own[task]
        kept, near = self._kept(), frozenset().union(*self.near(dealt))
        if (task, dealt) in kept:
            return kept[task, dealt]
        parts = [
            self.part(its)
            for place in self._alike(task, dealt)
            for other, its in enumerate(self.deals[place])
            if other != task and (other, its) not in kept
        ]
        rest = (self.own[task] & near).difference(*parts)
        return self._left(task, dealt, self._taken(kept)) | rest or self.last[task]

    def kept_in_all(self) -> dict[int, CpuSet]:
        """Return the near slices by task, which is kept in each deal."""
        tasks = range(len(self.own))
        near = (it for it in tasks if all(self._is_near(it, deal[it]) for deal in self.deals))
        return {task: self.own[task] for task in near}

    def _kept(self) -> dict[Place, CpuSet]:
        """Return the slices that tasks keep, by what these may have been dealt."""
        waiting = dict.fromkeys(place for deal in self.deals for place in enumerate(deal))
        kept: dict[Place, CpuSet] = {}
        lost = [place for place in waiting if self._is_near(*place)]
        while lost:
            for task, dealt in lost:
                del waiting[task, dealt]
                kept[task, dealt] = self.last[task]
            taken = self._taken(kept)
            lost = [it for it in waiting if not self.suffices(self._left(*it, taken))]
        return kept

    def _taken(self, kept: Mapping[Place, CpuSet]) -> list[CpuSet]:
        """Return the slices that are kept, together, of each deal."""
        each = ([kept[it] for it in enumerate(deal) if it in kept] for deal in self.deals)
        return [frozenset().union(*slices) for slices in each]

    def _is_near(self, task: int, dealt: Dealt) -> bool:
        """Return whether a task's slice is near all of its GPUs."""
        own, near = self.own[task], self.near(dealt)
        is_at_each = not any(map(own.isdisjoint, near))
        return is_at_each and own <= frozenset().union(*near)

    def _left(self, task: int, dealt: Dealt, taken: Sequence[CpuSet]) -> CpuSet:
        """Return a task's part without the slices that others keep."""
        return self.part(dealt).difference(*(taken[place] for place in self._alike(task, dealt)))

    def _alike(self, task: int, dealt: Dealt) -> Sequence[int]:
        """Return the deals that a task knows to be possible; all, if gres.conf has other cores."""
        places = range(len(self.deals))
        return [place for place in places if self.deals[place][task] == dealt] or places
