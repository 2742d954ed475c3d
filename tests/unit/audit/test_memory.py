"""Why memory is far from its GPUs: the first cause that fits."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from affinityd.audit.memory import CAUSES, FarMemory
from affinityd.linux.memory_policy import MemoryPolicy
from affinityd.linux.resident import ANONYMOUS, FILES, HUGE, SHARED
from affinityd.topology.nearness import LOCAL, REMOTE, UNKNOWN

GIB = 2**30
PRIVATE = {ANONYMOUS: 60 * GIB}


def policy(name: str, *nodes: int) -> MemoryPolicy:
    return MemoryPolicy(name, frozenset(nodes))


@pytest.mark.parametrize(
    ("cause", "facts"),
    [
        ("late", {}),
        ("late", {"placement": REMOTE}),
        ("late", {"kinds": {**PRIVATE, SHARED: 30 * GIB, FILES: 29 * GIB}}),
        ("late", {"policy": policy("default")}),
        ("late", {"policy": policy("preferred", 0)}),
        ("late", {"policy": policy("bind", 0, 1)}),  # the kernel takes the nearest of them first
        ("late", {"policy": policy("interleave", 0)}),
        ("late", {"refused": 90 * GIB}),  # there is room now: it may be long ago
        ("late", {"refused": 50 * GIB, "room": 10 * GIB}),
        ("late", {"room": 10 * GIB}),
        ("policy", {"policy": policy("bind", 1)}),
        ("policy", {"policy": policy("preferred", 1), "kinds": {SHARED: GIB}}),
        ("policy", {"policy": policy("interleave", 0, 1)}),
        ("policy", {"policy": policy("weighted_interleave", 0, 1)}),
        ("shared", {"kinds": {SHARED: 60 * GIB, ANONYMOUS: 60 * GIB}}),
        ("shared", {"kinds": {FILES: 30 * GIB, SHARED: 30 * GIB, HUGE: 60 * GIB}}),
        ("full", {"refused": 60 * GIB, "room": 59 * GIB}),
        ("full", {"refused": 60 * GIB, "room": 0, "placement": UNKNOWN}),
        ("unknown", {"placement": UNKNOWN}),
    ],
)
def test_the_cause_is_the_first_that_fits(cause: str, facts: Mapping[str, object]) -> None:
    base: dict[str, object] = {"kinds": PRIVATE, "near": frozenset({0}), "placement": LOCAL}
    memory = FarMemory(**{**base, **facts})  # type: ignore[arg-type]
    assert memory.cause == cause
    assert cause in CAUSES
