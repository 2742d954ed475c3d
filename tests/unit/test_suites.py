"""Every file of tests is in a suite, and every suite is run: for a change, or by night."""

from __future__ import annotations

from tests.support.paths import REPOSITORY

TESTS = REPOSITORY / "tests"
TIERS = {"unit", "all", "nightly"}
ROWS = [
    row.split() for row in (TESTS / "suites").read_text().splitlines() if not row.startswith("#")
]


def test_every_suite_is_run_for_a_change_or_by_night() -> None:
    assert {tier for _, tiers, *_ in ROWS for tier in tiers.split(",")} == TIERS
    assert all({"all", "nightly"} & {*tiers.split(",")} for _, tiers, *_ in ROWS)


def test_every_test_file_is_in_a_suite() -> None:
    folders = [TESTS / name for name, *_ in ROWS] + [TESTS / "e2e" / name for name, *_ in ROWS]
    files = [path for path in TESTS.rglob("*.py") if path.name.startswith("test_")]
    assert [path for path in files if not {*folders} & {*path.parents}] == []


def test_every_suite_has_tests() -> None:
    for name, *_ in ROWS:
        folders = (TESTS / name, TESTS / "e2e" / name)
        assert [it for it in folders if [*it.rglob("test_*.py")]], name
