"""Reports of the guests' scripts, each from its own virtual machine."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.slurm.rig import root_of
from tests.e2e.vm import hardware, two_nodes
from tests.e2e.vm.kubelet_root import CONTROL_PLANE, NETWORK, kubelet_root
from tests.e2e.vm.machine import PATIENCE, boot

Document = dict[str, Any]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Run test_apply for each change, and all other tests only nightly."""
    name = collection_path.stem.removeprefix("test_")
    is_test = collection_path.name.startswith("test_")
    wanted = config.getoption("nightly") != (name == "apply")
    return True if is_test and not wanted else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Extend the tests' timeouts: the first test that uses a machine waits for its end."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(2 * PATIENCE))


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Document:
    """Return the report of the script for these tests: guest_apply for test_apply."""
    name = request.path.stem.removeprefix("test_")
    folder = tmp_path_factory.mktemp("vm")
    if name == "kubelet":
        root = kubelet_root()
        control = (*CONTROL_PLANE, root, folder)
        machine = [*two_nodes.options(), *NETWORK]
        return boot(folder, name, machine, root, before=control, patience=1800)
    if name == "slices":
        return boot(folder, name, two_nodes.options(), root_of("24.11"))
    return boot(folder, name, hardware.options())
