"""With just what one feature needs a daemon has it; without a privilege it loses what needs it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.e2e.privileges.actors import Actors, playing
from tests.e2e.privileges.features import WORKS
from tests.e2e.privileges.node import confined
from tests.support import privileges
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import eventually

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts, and becomes other users"),
    needs_cpuset,
]


NPU = 7  #: /dev/full's


@pytest.fixture(scope="module")
def actors() -> Iterator[Actors]:
    with playing(NPU) as actors:
        yield actors


def test_every_feature_is_looked_at_and_every_loss_is_told_or_known_to_be_silent() -> None:
    assert set(WORKS) == set(privileges.FEATURES)
    kinds = ("capabilities", "calls", "reads", "namespaces")
    every = {item for kind in kinds for item in privileges.items(kind)}
    assert set(privileges.SAID) | privileges.SILENT == every
    assert not set(privileges.SAID) & privileges.SILENT


@pytest.mark.parametrize("feature", privileges.FEATURES)
def test_with_what_it_needs_and_no_more_it_has(actors: Actors, feature: str) -> None:
    with confined(actors, only=feature) as node:
        eventually(lambda: feature in node.working(), f"it has {feature}")


@pytest.mark.parametrize(
    ("kind", "item"),
    [
        (kind, item)
        for kind in ("capabilities", "calls", "namespaces")
        for item in privileges.items(kind)
    ],
)
def test_without_a_privilege_it_loses_what_needs_it_and_nothing_else(
    actors: Actors, kind: str, item: str
) -> None:
    with confined(actors, kind, item) as node:
        node.settle()
        node.must_lose(privileges.lost_without(kind, item), item)
