"""Values that follow from a topology, kept with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from affinityd.topology.model import Topology

if TYPE_CHECKING:
    T = TypeVar("T")


def derived(make: Callable[[Topology], T]) -> Callable[[Topology], T]:
    """Have a function of a topology called once for each, as its cached properties are."""
    name = f"{make.__module__}.{make.__name__}"

    def get(topology: Topology) -> T:
        kept = vars(topology)
        if name not in kept:
            kept[name] = make(topology)
        value: T = kept[name]
        return value

    return get
