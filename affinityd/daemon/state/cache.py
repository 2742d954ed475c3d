"""A cache limited in bytes: the least recently used entry goes first."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Cache(Generic[K, V]):
    """Keeps values, as long as their total size stays below a limit, in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._weight = 0
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the value that is remembered; None if there is none."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        self._kept.move_to_end(key)
        return kept[0]

    def put(self, key: K, value: V, weight: int) -> None:
        """Remember a value that weighs so many bytes."""
        _, replaced = self._kept.pop(key, (None, 0))
        self._kept[key] = (value, weight)
        self._weight += weight - replaced
        while self._weight > self._limit:
            _, (_, oldest) = self._kept.popitem(last=False)
            self._weight -= oldest
