"""How packages and NUMA nodes are called in what people read."""

from __future__ import annotations

from collections.abc import Collection

from affinityd.cpuset import format_list
from affinityd.words import node_name


def nodes(numbers: Collection[int | None]) -> str:
    """Return `node 3`, or `nodes 3-5`; None is the node of the CPUs that no node lists."""
    known = [number for number in numbers if number is not None]
    parts = [_several("node", known)] if known else []
    return " and ".join([*parts, *([node_name(None)] if None in numbers else [])])


def packages(numbers: Collection[int | None]) -> str | None:
    """Return `package 0`, or `packages 0-1`; None where the machine does not tell."""
    known = [number for number in numbers if number is not None]
    return _several("package", known) if known else None


def _several(noun: str, numbers: Collection[int]) -> str:
    return f"{noun if len(numbers) == 1 else f'{noun}s'} {format_list(numbers)}"
