"""Trees of aligned lines."""

from __future__ import annotations

from affinityd.cli.console import aligned
from affinityd.cli.render.tree import BOLD, WIDTH, Branch, Kind, paint, render

NAMED = Kind("named")
COUNTED = Kind("counted", amounts=(1,))


def lines(*branches: Branch, colour: bool = False) -> list[str]:
    return list(render(branches, colour=colour))


def test_cells_of_one_kind_line_up_at_every_depth() -> None:
    below = (Branch(NAMED, ("b", "two")),)
    assert lines(
        Branch(NAMED, ("a", "one"), below=below), Branch(NAMED, ("long name", "three"))
    ) == [
        "├─ a          one",
        "│  └─ b       two",
        "└─ long name  three",
    ]


def test_amounts_stand_to_the_right() -> None:
    assert lines(Branch(COUNTED, ("a", "8", "x")), Branch(COUNTED, ("b", "128", "y"))) == [
        "├─ a    8  x",
        "└─ b  128  y",
    ]


def test_kinds_do_not_heed_each_other() -> None:
    assert lines(Branch(COUNTED, ("a", "8", "x")), Branch(NAMED, ("long name", "y"))) == [
        "├─ a  8  x",
        "└─ long name  y",
    ]


def test_a_column_in_which_no_line_has_anything_is_not_there() -> None:
    assert lines(Branch(NAMED, ("a", "", "x")), Branch(NAMED, ("b", "", ""))) == ["├─ a  x", "└─ b"]


def test_a_long_last_cell_goes_on_below_itself() -> None:
    words = " ".join(["word"] * 30)
    drawn = lines(Branch(NAMED, ("a", words), below=(Branch(NAMED, ("b", "")),)))
    assert drawn == [
        "└─ a     " + " ".join(["word"] * 18),
        "   │     " + " ".join(["word"] * 12),
        "   └─ b",
    ]
    assert len(drawn[0]) <= WIDTH


def test_a_cpulist_without_blanks_is_broken_after_a_comma() -> None:
    cpulist = ",".join(str(cpu) for cpu in range(0, 200, 2))
    first, *rest = lines(Branch(NAMED, ("a", cpulist)))
    assert all(line.endswith(",") for line in (first, *rest[:-1]))
    assert "".join([first.removeprefix("└─ a  "), *map(str.strip, rest)]) == cpulist


def test_what_cannot_be_broken_is_left_whole() -> None:
    assert lines(Branch(NAMED, ("a", "x" * 200))) == ["└─ a  " + "x" * 200]


def test_colour_changes_no_column() -> None:
    branches = (
        Branch(NAMED, ("a", "one"), BOLD, (Branch(NAMED, ("bb", "two")),)),
        Branch(NAMED, ("ccc", "three"), BOLD),
    )
    coloured = lines(*branches, colour=True)
    assert coloured != lines(*branches)
    assert [plain(line) for line in coloured] == lines(*branches)


def plain(line: str) -> str:
    for code in ("0", "1", "2"):
        line = line.replace(f"\x1b[{code}m", "")
    return line


def test_nothing_is_painted_without_colour_or_without_text() -> None:
    assert paint("a", BOLD, colour=False) == "a"
    assert paint("", BOLD, colour=True) == ""
    assert paint("a", BOLD, colour=True) == "\x1b[1ma\x1b[0m"


def test_a_table_has_names_to_the_left_and_amounts_to_the_right() -> None:
    assert list(aligned(("distance", "0", "10"), [("a", "255", "7")], ("0", "10"))) == [
        "distance    0  10",
        "a         255   7",
    ]
