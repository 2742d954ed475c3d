"""Settings of all tests."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

#: What public planners answer, where it lies beside the checkout; no test needs it.
CONFORMANCE = Path(__file__).parents[2] / "shared" / "conformance"

collect_ignore = [] if CONFORMANCE.is_dir() else ["test_conformance.py"]

settings.register_profile(
    "quick",
    max_examples=50,
    deadline=None,  # a busy machine is no failure
    derandomize=True,  # the same examples everywhere: what passes here passes in CI
)
settings.register_profile(
    "long", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
