"""Trees of aligned lines."""

from __future__ import annotations

import re

import pytest

from affinityd.cli.console import aligned
from affinityd.cli.render.tree import BOLD, WIDTH, Branch, Kind, paint, render

NAMED = Kind("named")
COUNTED = Kind("counted", amounts=(1,))
LONG = " ".join(["word"] * 30)


def named(*cells: str, below: tuple[Branch, ...] = ()) -> Branch:
    return Branch(NAMED, cells, below=below)


def counted(*cells: str) -> Branch:
    return Branch(COUNTED, cells)


@pytest.mark.parametrize(
    ("branches", "drawn"),
    [
        (
            (named("a", "one", below=(named("b", "two"),)), named("long name", "three")),
            ["├─ a          one", "│  └─ b       two", "└─ long name  three"],
        ),
        ((counted("a", "8", "x"), counted("b", "128", "y")), ["├─ a    8  x", "└─ b  128  y"]),
        ((counted("a", "8", "x"), named("long name", "y")), ["├─ a  8  x", "└─ long name  y"]),
        ((named("a", "", "x"), named("b", "", "")), ["├─ a  x", "└─ b"]),
        (
            (named("a", LONG, below=(named("b", ""),)),),
            [f"└─ a     {LONG[:89]}", f"   │     {LONG[90:]}", "   └─ b"],
        ),
        ((named("a", "x" * 200),), [f"└─ a  {'x' * 200}"]),
    ],
    ids=[
        *("cells of one kind line up at every depth", "amounts stand to the right"),
        *("kinds do not heed each other", "an empty column is not there"),
        *("a long last cell goes on below itself", "what cannot be broken is left whole"),
    ],
)
def test_lines_are_aligned(branches: tuple[Branch, ...], drawn: list[str]) -> None:
    assert list(render(branches, color=False)) == drawn
    assert len(drawn[0]) <= WIDTH or " " not in drawn[0][6:]


def test_a_cpulist_without_blanks_is_broken_after_a_comma() -> None:
    cpulist = ",".join(str(cpu) for cpu in range(0, 200, 2))
    first, *rest = render((named("a", cpulist),), color=False)
    assert all(line.endswith(",") for line in (first, *rest[:-1]))
    assert "".join([first.removeprefix("└─ a  "), *map(str.strip, rest)]) == cpulist


def test_colour_changes_no_column_and_paints_no_empty_text() -> None:
    below = (Branch(NAMED, ("bb", "two")),)
    branches = (Branch(NAMED, ("a", "one"), BOLD, below), Branch(NAMED, ("ccc", "three"), BOLD))
    plain, coloured = (list(render(branches, color=colour)) for colour in (False, True))
    assert coloured != plain
    assert [re.sub(r"\x1b\[[012]m", "", line) for line in coloured] == plain
    painted = [paint(text, BOLD, color=colour) for text in ("", "a") for colour in (True, False)]
    assert painted == ["", "", "\x1b[1ma\x1b[0m", "a"]


def test_a_table_has_names_to_the_left_and_amounts_to_the_right() -> None:
    table = aligned(("distance", "0", "10"), [("a", "255", "7")], ("0", "10"))
    assert list(table) == ["distance    0  10", "a         255   7"]
