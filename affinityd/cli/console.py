"""Printing that commands share: option names, tables, and remarks on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence

from affinityd.text import one_line

TROUBLE = 2  #: exit code of an error, for commands where 1 is an answer


def give_up_stdout() -> None:
    """Point stdout at /dev/null: otherwise Python would write its buffer at exit, and fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def flag(name: str) -> str:
    """Return the option of a name: `--gpu-bind`."""
    return f"--{name.replace('_', '-')}"


def say(text: str) -> None:
    """Print a line on stderr. Drop it if stderr is closed or full: print() would use stdout."""
    if sys.stderr is not None:
        try:
            sys.stderr.write(f"{one_line(text)}\n")
        except OSError:  # there is no reader, so the command continues without this line
            sys.stderr = None  # otherwise Python would write the line again at exit


def aligned(
    columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[str]
) -> Iterator[str]:
    """Yield a table's header and rows; the columns in `numbers` are right-aligned."""
    cells = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        line = []
        for column, cell, width in zip(columns, row, widths, strict=True):
            line.append(cell.rjust(width) if column in numbers else cell.ljust(width))
        yield "  ".join(line).rstrip()
