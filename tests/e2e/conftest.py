"""The hooks that all end-to-end suites share."""

from pathlib import Path

import pytest

from tests.e2e.slurm.rig import HOST, NIGHTLY, SUITES
from tests.support.two_cpus import keep_two_cpus

keep_two_cpus()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave tests in a suite's folder `nightly` to the nightly tier."""
    return True if collection_path.name == "nightly" and not config.getoption("nightly") else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with a parameter `release` on each release of Slurm of this tier, in order."""
    if "release" in metafunc.fixturenames:
        nightly = metafunc.config.getoption("nightly")
        tried = NIGHTLY if nightly else [it for it in (HOST, *SUITES) if it not in NIGHTLY]
        metafunc.parametrize("release", tried, scope="module")
