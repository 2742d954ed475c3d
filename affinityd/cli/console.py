"""What commands print in one way: names of options, tables, and remarks on stderr."""

from __future__ import annotations

import os
import sys

from affinityd.text import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence


def give_up_stdout() -> None:
    """Keep Python from trying to write the rest at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def flag(name: str) -> str:
    """Return the option of a name: `--gpu-bind`."""
    return f"--{name.replace('_', '-')}"


def say(text: str) -> None:
    """Print a line on stderr; nowhere, where that is closed (print would take stdout), or full."""
    if sys.stderr is not None:
        with_newline = f"{one_line(text)}\n"
        try:
            sys.stderr.write(with_newline)
        except OSError:  # no reader: that must not be the end of what goes on beside it,
            sys.stderr = None  # nor be tried again when Python ends


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
