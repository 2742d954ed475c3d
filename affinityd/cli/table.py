"""A table as a command prints it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence


def aligned(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str]
) -> Iterator[str]:
    """Yield the lines of a table: its heads, then its rows; the columns of `numbers` to the right.

    Each row has a cell for every column.
    """
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        cells = zip(columns, row, widths, strict=True)
        yield "  ".join(
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, cell, width in cells
        ).rstrip()
