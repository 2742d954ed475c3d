"""Settings of all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.daemons import BELIEVED, Daemon, running
from tests.support.paths import REPOSITORY

#: What public planners answer, where it lies beside the checkout; no test needs it.
CONFORMANCE = REPOSITORY.parent / "shared" / "conformance"

#: The trees that tests write are read from memory, as a kernel's are.
MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes a folder of its own in it
if os.access(MEMORY, os.W_OK):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", os.fspath(MEMORY))

collect_ignore = [] if CONFORMANCE.is_dir() else ["unit/planner/test_conformance.py"]

#: Suites with files that take minutes, the longest first: at the end one would run alone.
LONG = ("vm", "load", "torch", "faults")

os.environ.update(BELIEVED)

# The programs that tests start are not to be compiled anew by each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile(
    "quick",
    max_examples=30,
    deadline=None,  # a busy machine is no failure
    derandomize=True,  # the same examples everywhere: what passes here passes in CI
)
settings.register_profile(
    "long", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long."""
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in LONG])


@pytest.fixture(scope="module")
def tiny_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Run a daemon whose plans can be applied here."""
    # Imported here: a machine with one CPU runs the other tests.
    from tests.support.tiny import tiny_tree  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("tiny")
    with running(folder, "--root", str(tiny_tree(folder / "machine"))) as daemon:
        yield daemon


@pytest.fixture
def here(tiny_daemon: Daemon) -> Mapping[str, str]:
    """Return the environment that leads to that daemon, and says nothing else."""
    socket = str(tiny_daemon.socket)
    return {"AFFINITYD_SOCKET": socket, "AFFINITYD_CONFIG": "/nonexistent", **BELIEVED}
