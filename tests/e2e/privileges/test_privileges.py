"""A feature works with only its needs; without an item only features that need the item fail."""

import re
from collections.abc import Iterator

import pytest

from tests.e2e.privileges.actors import Actors, playing
from tests.e2e.privileges.features import WORKS
from tests.e2e.privileges.node import confined
from tests.support import privileges
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import PATIENCE, eventually
from tests.support.paths import REPOSITORY

pytestmark = needs_cpuset

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


def test_every_feature_has_a_check() -> None:
    assert set(WORKS) == set(privileges.FEATURES)


@pytest.mark.parametrize("feature", privileges.FEATURES)
def test_a_feature_works_with_only_its_needs(actors: Actors, feature: str) -> None:
    with confined(actors, only=feature) as node:
        eventually(lambda: feature in node.working(), f"it has {feature}")


@pytest.mark.parametrize(("kind", "item"), [it for it in EVERY if it[1] != CPUS])
def test_without_an_item_only_the_features_that_need_it_fail(
    actors: Actors, kind: str, item: str
) -> None:
    with confined(actors, kind, item) as node:
        node.settle()
        node.must_lose(privileges.lost_without(kind, item), item)


def test_without_cpus_the_daemon_cannot_plan(actors: Actors) -> None:
    with confined(actors, "reads", CPUS) as node:
        node.must_lose(privileges.lost_without("reads", CPUS), CPUS)
        assert node.daemon.get("/plan?gpus=0").status == 503


def test_the_daemon_ends_if_it_cannot_write_its_folder(actors: Actors) -> None:
    with confined(actors, "writes", "/run/affinityd") as node:
        assert node.daemon.process.wait(PATIENCE) == 1
        (line,) = node.daemon.complaints
        assert "/run/affinityd" in line


# The unit gives the daemon what the table says, and nothing else.


UNIT = REPOSITORY / "deploy/systemd/affinityd.service"


def values(text: str, name: str, mark: str = "") -> list[set[str]]:
    """Return the words of each line of a directive; `mark` is the prefix of the line."""
    lines = re.findall(rf"^{mark}{name}=(.*)$", text, re.MULTILINE)
    return [set(line.split()) for line in lines]


def capabilities(name: str) -> set[str]:
    return {f"CAP_{it}" for it in privileges.needs(name, "capabilities")}


def test_the_unit_has_one_writable_folder_and_suggests_settings_for_device_files() -> None:
    unit = UNIT.read_text()
    assert values(unit, "CapabilityBoundingSet") == [set()]
    (folder,) = values(unit, "RuntimeDirectory")
    (read_only,) = values(unit, "BindReadOnlyPaths")
    assert {f"/run/{it}" for it in folder} - read_only == set(privileges.items("writes"))
    for name in ("ReadWritePaths", "PrivateNetwork", "IPAddressDeny"):
        assert values(unit, name) == []
    assert values(unit, "ProtectSystem") == [{"strict"}]
    (offered,) = values(unit, "CapabilityBoundingSet", mark="#   ")
    assert offered == capabilities("the audit of device files")
    allowed, left_out, again = values(unit, "SystemCallFilter")
    assert allowed == {"@system-service"}
    assert left_out == {"~@privileged", "@resources", "@aio", "@keyring"}
    assert again == {"setpriority"}
