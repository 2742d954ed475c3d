"""A cluster needs root, and the rig that makes it."""

from __future__ import annotations

import os

import pytest

from tests.e2e.kubernetes.cluster import RIGS


@pytest.fixture(autouse=True, scope="session")
def rig() -> None:
    """Skip where no cluster can be made."""
    if os.geteuid() != 0:
        pytest.skip("runs a cluster")
    if not RIGS.exists():
        pytest.skip("the rig of a cluster is not beside the checkout")
