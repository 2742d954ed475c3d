"""What the guests' scripts saw: one machine runs all that a change needs, others one each."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.slurm.rig import root_of
from tests.e2e.vm import hardware, two_nodes
from tests.e2e.vm.machine import PATIENCE, PYTHON, UNUSED, boot
from tests.support.shared_objects import environment, slurm_task

#: The tests that `scripts/test all` runs, in the order in which their scripts run.
EVERY_CHANGE = ("apply",)

#: The tests that need another Slurm than the image's.
RELEASES = {"sluid": "26.05", "slices": "24.11"}

Document = dict[str, Any]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave to the night what is the night's, and to a change what is a change's."""
    name = collection_path.stem.removeprefix("test_")
    is_test = collection_path.name.startswith("test_")
    wanted = config.getoption("nightly") != (name in EVERY_CHANGE)
    return True if is_test and not wanted else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the first test of a machine wait for it."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(2 * PATIENCE))


@pytest.fixture(scope="session")
def in_one_machine(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Document]:
    """Return name → what its script saw, of all that a change needs."""
    return booted(tmp_path_factory.mktemp("vm"), EVERY_CHANGE)


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Document:
    """Return what the script of these tests saw: test_apply's is guest_apply."""
    name = request.path.stem.removeprefix("test_")
    if name in EVERY_CHANGE:
        reports: Mapping[str, Document] = request.getfixturevalue("in_one_machine")
    else:
        reports = booted(tmp_path_factory.mktemp("vm"), [name])
    return reports[name]


def booted(folder: Path, names: Sequence[str]) -> Mapping[str, Document]:
    nvml = Path(environment("", folder)["LD_LIBRARY_PATH"], "libnvidia-ml.so.1")
    releases = [root_of(RELEASES[name]) for name in names if name in RELEASES]
    release = next(iter(releases), None)
    if "slices" in names:
        machine = two_nodes.options()
        built = [nvml, slurm_task()]
        return boot(folder, names, machine=machine, built=built, release=release)
    machine = hardware.options()
    unused = (*UNUSED, *PYTHON)
    return boot(folder, names, machine=machine, built=[nvml], release=release, unused=unused)
