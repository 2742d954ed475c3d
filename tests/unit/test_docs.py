"""The pages name every mode, parameter, warning and setting; the examples of code work."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from affinityd.config import PLAN_PARAMETERS
from affinityd.config.settings import NAMES
from affinityd.discovery import gpus
from affinityd.doctor.checks import kernel
from affinityd.planner import WARNINGS, modes
from affinityd.planner.modes import MODES
from affinityd.request.parameters import PARAMETERS
from docs.check.blocks import BLOCKS
from docs.check.messages import GOLDEN, texts
from tests.support.asking import ask, cpulists
from tests.support.doctor_facts import facts_of
from tests.support.machines.facts import machine
from tests.support.paths import REPOSITORY

MODE, VENDORS, HUGE_PAGES, ROW = (
    it.text for it in BLOCKS if (it.page, it.kind) == ("CONTRIBUTING.md", "python")
)


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


def defined(text: str, module: object) -> dict[str, Any]:
    """Return the names of an example, which extends a module."""
    names = dict(vars(module))
    exec(text, names)  # noqa: S102 - the page's own
    return names


def test_the_example_of_a_mode_gives_every_rank_the_last_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(MODES, "last", defined(MODE, modes)["MODES"]["last"])
    reply = ask(machine("dgx-1v"), gpus="0,1,4", mode="last")
    assert cpulists(reply) == ["19,59", "19,59", "39,79"]
    assert [rank.threads for rank in reply.ranks] == [1, 1, 1]


def test_the_example_of_a_vendor_has_one_more() -> None:
    assert defined(VENDORS, gpus)["VENDORS"].items() > gpus.VENDORS.items()


@pytest.mark.parametrize(
    ("setting", "status"), [("always [madvise] never", "ok"), ("always madvise [never]", "warn")]
)
def test_the_example_of_a_check_judges_huge_pages(
    tmp_path: Path, setting: str, status: str
) -> None:
    facts = facts_of(tmp_path, files={"sys/kernel/mm/transparent_hugepage/enabled": setting})
    found = [*defined(HUGE_PAGES, kernel)["huge_pages"](facts)]
    assert found[0].status == status
    assert "kernel.huge_pages" in ROW


def test_the_golden_file_has_every_message() -> None:
    """Run `scripts/messages --write` after a change of a message, and read the file's diff."""
    assert texts().splitlines() == GOLDEN.read_text().splitlines()
