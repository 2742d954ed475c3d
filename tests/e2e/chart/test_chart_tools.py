"""Where the tools that judge the chart are kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"HOME": "/home/ada"}, "/home/ada/.cache/affinityd-chart"),
        ({"HOME": "/home/ada", "XDG_CACHE_HOME": ""}, "/home/ada/.cache/affinityd-chart"),
        ({"HOME": "/home/ada", "XDG_CACHE_HOME": "/scratch"}, "/scratch/affinityd-chart"),
    ],
)
def test_the_tools_are_kept_in_the_users_cache(given: Mapping[str, str], kept: str) -> None:
    others = {name: text for name, text in os.environ.items() if name != "XDG_CACHE_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", "from tests.e2e.chart import tools; print(tools.CACHE)"],
        capture_output=True,
        text=True,
        check=True,
        env={**others, **given},
    )
    assert done.stdout == f"{kept}\n"
