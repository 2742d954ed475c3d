"""Tasks that may have the same GPU have different slots on it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from affinityd.request.step.deals import Deal

#: A task's place among those that a GPU's cores are divided among: its number, and theirs.
Slot = tuple[int, int]


def slots(dealt: Sequence[Deal], tasks: int) -> list[Slot]:
    """Return the slot of each task; those that have a GPU in common in any deal differ.

    []: any may have. Every GPU has as many slots as any has: each task finds the same ones.
    """
    if not dealt:
        return [(task, tasks) for task in range(tasks)]
    beside: list[set[int]] = [set() for _ in range(tasks)]
    for deal in dealt:
        on: dict[int, list[int]] = {}
        for task, places in enumerate(deal):
            for place in places:
                on.setdefault(place, []).append(task)
        for sharing in {*map(tuple, on.values())}:
            for task in sharing:
                beside[task].update(sharing)
    numbers: dict[int, int] = {}
    for task in range(tasks):
        taken = {numbers[it] for it in beside[task] if it in numbers}
        numbers[task] = next(it for it in range(tasks) if it not in taken)
    most = 1 + max(numbers.values())
    return [(numbers[task], most) for task in range(tasks)]
