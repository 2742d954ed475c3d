"""What several of the suites share."""

from __future__ import annotations

import pytest

from tests.e2e.slurm.release import HOST, NIGHTLY, SUITES

RELEASES = [
    pytest.param(name, marks=[pytest.mark.nightly] if name in NIGHTLY else [])
    for name in (HOST, *SUITES)
]


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    """Return the release of Slurm that a cluster is to have: each, one after the other."""
    return str(request.param)
