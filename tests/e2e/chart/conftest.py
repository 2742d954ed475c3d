"""What a change of the chart needs, and what the night has time for."""

from __future__ import annotations

from pathlib import Path

import pytest

#: What takes packages of many megabytes, and seldom finds what the other tests do not.
NIGHTLY = ("test_checkov.py", "test_custom_resources.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave to the night what is the night's, and to a change what is a change's."""
    is_test = collection_path.name.startswith("test_")
    wanted = config.getoption("nightly") == (collection_path.name in NIGHTLY)
    return True if is_test and not wanted else None
