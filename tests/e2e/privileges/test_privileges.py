"""With just what one feature needs a daemon has it; what is taken loses what needs it, no more."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.e2e.privileges.actors import Actors, playing
from tests.e2e.privileges.features import WORKS
from tests.e2e.privileges.node import confined
from tests.support import privileges
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import PATIENCE, eventually

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts, and becomes other users"),
    needs_cpuset,
]

CPUS = "/sys/devices/system/cpu"
EVERY = [
    (kind, item)
    for kind in ("capabilities", "calls", "namespaces", "reads")
    for item in privileges.items(kind)
]


@pytest.fixture(scope="module")
def actors() -> Iterator[Actors]:
    with playing() as actors:
        yield actors


def test_every_feature_is_looked_at_and_every_loss_is_told_or_known_to_be_silent() -> None:
    assert set(WORKS) == set(privileges.FEATURES)
    assert set(privileges.SAID) | privileges.SILENT == {item for _, item in EVERY}
    assert not set(privileges.SAID) & privileges.SILENT


@pytest.mark.parametrize("feature", privileges.FEATURES)
def test_a_feature_works_with_only_its_needs(actors: Actors, feature: str) -> None:
    with confined(actors, only=feature) as node:
        eventually(lambda: feature in node.working(), f"it has {feature}")


@pytest.mark.parametrize(("kind", "item"), [it for it in EVERY if it[1] != CPUS])
def test_each_loss_costs_only_what_needs_it(actors: Actors, kind: str, item: str) -> None:
    with confined(actors, kind, item) as node:
        node.settle()
        node.must_lose(privileges.lost_without(kind, item), item)


def test_without_cpus_it_cannot_plan(actors: Actors) -> None:
    with confined(actors, "reads", CPUS) as node:
        node.must_lose(privileges.lost_without("reads", CPUS), CPUS)
        assert node.daemon.get("/plan?gpus=0").status == 503


def test_without_its_folder_the_daemon_ends(actors: Actors) -> None:
    with confined(actors, "writes", "/run/affinityd") as node:
        assert node.daemon.process.wait(PATIENCE) == 1
        (line,) = node.daemon.complaints
        assert "/run/affinityd" in line
