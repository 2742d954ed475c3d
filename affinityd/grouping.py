"""Values by key: groups of items, and values that are kept from scan to scan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")

REMEMBERED = 600.0  #: seconds for which `Recent` keeps an unused value


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the items of each key, keys in the order of their first items."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


class Recent(Generic[K, V]):
    """Values by key; a value that was neither set nor read for a while is removed."""

    def __init__(self) -> None:
        self._now = 0.0
        self._values: dict[K, tuple[V, float]] = {}  # each value with the time of its last use

    def begin(self, now: float) -> None:
        """Begin another scan: remove values that no scan has used for long."""
        since = self._now - REMEMBERED
        self._now = now
        self._values = {
            key: (value, used) for key, (value, used) in self._values.items() if used >= since
        }

    def __contains__(self, key: K) -> bool:
        """Return whether the key has a value; None counts as one."""
        return key in self._values

    def get(self, key: K) -> V | None:
        """Return the value of a key; None: the key has no value."""
        if key not in self._values:
            return None
        self[key] = value = self._values[key][0]
        return value

    def __setitem__(self, key: K, value: V) -> None:
        """Set the value of a key."""
        self._values[key] = value, self._now

    def is_news(self: Recent[K, None], key: K) -> bool:
        """Add a key; return True the first time: for lines that are logged once."""
        is_new = key not in self
        self[key] = None
        return is_new
