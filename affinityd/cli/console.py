"""Printing that commands share: names of options, tables, and remarks on stderr."""

from __future__ import annotations

import os
import sys
from itertools import zip_longest

from affinityd.text import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

GAP = "  "  #: between two columns


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
    columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[str]
) -> Iterator[str]:
    """Yield the lines of a table: its heads, then its rows; the columns of `numbers` to the right.

    Each row has a cell for every column.
    """
    right = [place for place, column in enumerate(columns) if column in numbers]
    return map(str.rstrip, justified([columns, *rows], right))


def justified(rows: Sequence[Sequence[str]], right: Collection[int]) -> Iterator[str]:
    """Yield rows whose cells line up, those of the columns `right` to the right.

    A row may have fewer cells; a column of empty ones is left out.
    """
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    for row in rows:
        yield GAP.join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=False))
            if width
        )
