"""How things are called in what people read."""

from __future__ import annotations

from affinityd.cpuset import format_list

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

#: Where a rank is, seen from its GPU; from best to worst, as a plan is summed up.
LOCALITIES = ("local", "unknown", "mixed", "remote")


def node_name(number: int | None) -> str:
    """Return a NUMA node's name for people."""
    return "the CPUs of no NUMA node" if number is None else f"node {number}"


def count(number: int, noun: str) -> str:
    """Return `1 core`, `2 cores`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def several(noun: str, numbers: Iterable[int]) -> str:
    """Return `node 3`, or `nodes 3-5`."""
    those = set(numbers)
    return f"{noun if len(those) == 1 else f'{noun}s'} {format_list(those)}"


#: Modes that divide the cores by the ranks' numbers and give no GPU a block of its own.
BY_RANK = frozenset(("even", "core_complex"))
