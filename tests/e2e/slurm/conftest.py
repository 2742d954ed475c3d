"""What the tests of Slurm share."""

from __future__ import annotations

import pytest

from tests.e2e.slurm.release import RELEASES


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    """Return the release of Slurm that a cluster is to have: each, one after the other."""
    return str(request.param)
