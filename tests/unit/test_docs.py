"""The pages name every mode, parameter, warning and setting."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from affinityd.config.file import PLAN_PARAMETERS
from affinityd.config.settings import NAMES
from affinityd.planner import WARNINGS
from affinityd.planner.modes import MODES
from affinityd.request.parameters import PARAMETERS
from tests.support.paths import REPOSITORY


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("docs/planning.md", MODES),
        ("docs/api.md", PARAMETERS),
        ("docs/api.md", WARNINGS),
        ("docs/settings.md", [f"AFFINITYD_{name.upper()}" for name in NAMES]),
        ("docs/settings.md", [f"AFFINITYD_{name.upper()}" for name in PLAN_PARAMETERS]),
    ],
    ids=["every mode", "every parameter", "every warning", "every setting", "every choice"],
)
def test_is_explained(page: str, words: Iterable[str]) -> None:
    text = (REPOSITORY / page).read_text()
    assert [word for word in words if f"`{word}`" not in text] == []
