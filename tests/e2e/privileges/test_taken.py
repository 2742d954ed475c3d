"""Each file and folder of the table is taken from the daemon: it loses what the table says."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.e2e.privileges.actors import Actors, playing
from tests.e2e.privileges.node import confined
from tests.support import privileges
from tests.support.cpusets import needs_cpuset

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts, and becomes other users"),
    needs_cpuset,
]

CPUS = "/sys/devices/system/cpu"
NPU = 5  #: /dev/zero's


@pytest.fixture(scope="module")
def actors() -> Iterator[Actors]:
    with playing(NPU) as actors:
        yield actors


@pytest.mark.parametrize("path", [it for it in privileges.items("reads") if it != CPUS])
def test_without_a_file_it_loses_what_needs_it_and_nothing_else(actors: Actors, path: str) -> None:
    with confined(actors, "reads", path) as node:
        node.settle()
        node.must_lose(privileges.lost_without("reads", path), path)


def test_without_cpus_it_answers_that_it_cannot_plan(actors: Actors) -> None:
    with confined(actors, "reads", CPUS) as node:
        node.must_lose(privileges.lost_without("reads", CPUS), CPUS)
        assert node.daemon.get("/plan?gpus=0").status == 503


def test_without_its_folder_it_ends_with_one_line(actors: Actors) -> None:
    with confined(actors, "writes", "/run/affinityd") as node:
        assert node.daemon.process.wait(15) == 1
        (said,) = node.daemon.complaints
        assert "/run/affinityd" in said
