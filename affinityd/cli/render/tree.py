"""A tree of aligned lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from affinityd.cli.console import GAP, justified
from affinityd.grouping import grouped

WIDTH = 100  #: columns, where the last cell of a line allows it

#: SGR parameters (ECMA-48 §8.3.117).
BOLD, DIM, GREEN, YELLOW, CYAN = "1", "2", "32", "33", "36"


@dataclass(frozen=True)
class Kind:
    """Lines with aligned cells."""

    name: str
    amounts: tuple[int, ...] = ()  #: the columns that stand to the right


@dataclass(frozen=True)
class Branch:
    """A line of a tree: two cells or more, the last of which may wrap."""

    kind: Kind
    cells: tuple[str, ...]
    color: str = ""  #: of the first cell
    below: tuple[Branch, ...] = ()


@dataclass(frozen=True)
class _Row:
    branch: Branch
    stem: str  #: connects the line to its parent's
    rest: str  #: the text below the stem, where the line wraps


def paint(text: str, style: str, *, color: bool) -> str:
    """Return the text in a style, or as it is."""
    return f"\x1b[{style}m{text}\x1b[0m" if color and style and text else text


def render(branches: Sequence[Branch], *, color: bool) -> Iterator[str]:
    """Yield the lines of a tree; the stem counts as part of a line's first cell."""
    rows = list(_rows(branches, ""))
    heads = {
        kind: justified(
            [(row.stem + row.branch.cells[0], *row.branch.cells[1:-1]) for row in its],
            kind.amounts,
        )
        for kind, its in grouped(rows, lambda row: row.branch.kind).items()
    }
    for row in rows:
        yield from _lines(row, f"{next(heads[row.branch.kind])}{GAP}", color=color)


def _rows(branches: Sequence[Branch], indent: str) -> Iterator[_Row]:
    for place, branch in enumerate(branches, start=1):
        is_last = place == len(branches)
        stem, rest = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        yield _Row(branch, indent + stem, indent + rest + ("│" if branch.below else ""))
        yield from _rows(branch.below, indent + rest)


def _lines(row: _Row, head: str, *, color: bool) -> Iterator[str]:
    """Yield a row's lines; `head` is the text before its last cell."""
    name = row.branch.cells[0]
    last, *wrapped = _wrap(row.branch.cells[-1], WIDTH - len(head))
    stem, rest = (paint(text, DIM, color=color) for text in (row.stem, row.rest))
    painted = paint(name, row.branch.color, color=color)
    yield f"{stem}{painted}{head[len(row.stem + name) :]}{last}".rstrip()
    for line in wrapped:
        yield rest + " " * (len(head) - len(row.rest)) + line


def _wrap(text: str, width: int) -> Iterator[str]:
    """Yield the text in lines, broken between its words or else after a comma."""
    while len(text) > width > 0:
        cut = text.rfind(" ", 0, width + 1) + 1 or text.rfind(",", 0, width) + 1
        if not cut:
            break
        yield text[:cut].rstrip()
        text = text[cut:].lstrip()
    yield text
