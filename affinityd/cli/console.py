"""Printing that commands share: names of options, tables, and remarks on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import zip_longest

from affinityd.text import one_line

COLUMN_GAP = "  "  #: between two columns
TROUBLE = 2  #: exit code of every error, of commands whose 1 is an answer


def give_up_stdout() -> None:
    """Point stdout at /dev/null: Python would write its buffer at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def flag(name: str) -> str:
    """Return the option of a name: `--gpu-bind`."""
    return f"--{name.replace('_', '-')}"


def say(text: str) -> None:
    """Print a line on stderr. Drop it if stderr is closed or full: print() would use stdout."""
    if sys.stderr is not None:
        try:
            sys.stderr.write(f"{one_line(text)}\n")
        except OSError:  # no reader: that must not be the end of what goes on beside it,
            sys.stderr = None  # nor be tried again when Python ends


def wants_color() -> bool:
    """Whether stdout is a terminal that takes colors, unless NO_COLOR is set (no-color.org)."""
    return (
        sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "dumb") != "dumb"
    )


def aligned(
    columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[str]
) -> Iterator[str]:
    """Yield a table's header and rows; the columns in `numbers` are right-aligned.

    Each row has a cell for every column.
    """
    right = [place for place, column in enumerate(columns) if column in numbers]
    return map(str.rstrip, justified([columns, *rows], right))


def justified(rows: Sequence[Sequence[str]], right: Collection[int]) -> Iterator[str]:
    """Yield rows with aligned cells; the columns in `right` are right-aligned.

    A row may have fewer cells; a column of empty ones is left out.
    """
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    for row in rows:
        yield COLUMN_GAP.join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=False))
            if width
        )
