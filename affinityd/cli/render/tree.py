"""A tree of aligned lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

WIDTH = 100  #: columns, where the last cell of a line allows it
GAP = "  "

#: SGR parameters (ECMA-48 §8.3.117).
BOLD, DIM, GREEN, YELLOW, CYAN = "1", "2", "32", "33", "36"


@dataclass(frozen=True)
class Kind:
    """Lines whose cells line up with each other's."""

    name: str
    amounts: tuple[int, ...] = ()  #: the columns that stand to the right


@dataclass(frozen=True)
class Branch:
    """A line of a tree: two cells or more, the last of which may wrap."""

    kind: Kind
    cells: tuple[str, ...]
    colour: str = ""  #: of the first cell
    below: tuple[Branch, ...] = ()


@dataclass(frozen=True)
class _Row:
    branch: Branch
    stem: str  #: what connects the line to the one that it hangs on
    rest: str  #: what stands below the stem, where the line wraps


def paint(text: str, style: str, *, colour: bool) -> str:
    """Return the text in a style, or as it is."""
    return f"\x1b[{style}m{text}\x1b[0m" if colour and style and text else text


def render(branches: Sequence[Branch], *, colour: bool) -> Iterator[str]:
    """Yield the lines of a tree."""
    rows = list(_rows(branches, ""))
    widths = {
        kind: [max(map(len, column)) for column in _columns(rows, kind)]
        for kind in {row.branch.kind for row in rows}
    }
    for row in rows:
        yield from _lines(row, widths[row.branch.kind], colour=colour)


def _rows(branches: Sequence[Branch], indent: str) -> Iterator[_Row]:
    for place, branch in enumerate(branches, start=1):
        is_last = place == len(branches)
        stem, rest = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        yield _Row(branch, indent + stem, indent + rest + ("│" if branch.below else ""))
        yield from _rows(branch.below, indent + rest)


def _columns(rows: Iterable[_Row], kind: Kind) -> Iterator[tuple[str, ...]]:
    """Yield a kind's columns but for last cells; the stem counts as part of the first one."""
    cells = (
        (row.stem + row.branch.cells[0], *row.branch.cells[1:-1])
        for row in rows
        if row.branch.kind == kind
    )
    return zip_longest(*cells, fillvalue="")


def _lines(row: _Row, widths: Sequence[int], *, colour: bool) -> Iterator[str]:
    first, *middle, last = row.branch.cells
    amounts = row.branch.kind.amounts
    width = widths[0] - len(row.stem)
    head = [first.ljust(width)]
    for column, cell in enumerate(middle, start=1):
        head.append((str.rjust if column in amounts else str.ljust)(cell, widths[column]))
    start = len(row.stem) + len(GAP.join(filter(None, head))) + len(GAP)
    wrapped = list(_wrap(last, WIDTH - start))
    head[0] = paint(first, row.branch.colour, colour=colour) + " " * (width - len(first))
    stem, rest = (paint(text, DIM, colour=colour) for text in (row.stem, row.rest))
    yield (stem + GAP.join(filter(None, [*head, wrapped[0]]))).rstrip()
    for line in wrapped[1:]:
        yield rest + " " * (start - len(row.rest)) + line


def _wrap(text: str, width: int) -> Iterator[str]:
    """Yield the text in lines, broken between its words or else after a comma."""
    while len(text) > width > 0:
        cut = text.rfind(" ", 0, width + 1) + 1 or text.rfind(",", 0, width) + 1
        if not cut:
            break
        yield text[:cut].rstrip()
        text = text[cut:].lstrip()
    yield text
