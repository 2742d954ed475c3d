"""Hostlists, as Slurm writes names of nodes and files: `gpu[01-04,7],login2`.

Source: Slurm's src/common/hostlist.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice, product

from affinityd.errors import quote

#: As many as one range of Slurm's may hold.
MAX_NAMES = 65536

#: A name: brackets with ranges, and what is between them.
_NAME = re.compile(r"(?:[^\[\],]+|\[[^\[\]]*\])+")
_PARTS = re.compile(r"\[([^\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


def expand(text: str) -> tuple[str, ...]:
    """Return every name, in order. Raises ValueError, one line that quotes what is no hostlist."""
    names = tuple(islice(_names(text), MAX_NAMES + 1))
    if len(names) > MAX_NAMES:
        raise ValueError(f"{quote(text)} has more than {MAX_NAMES} names")
    return names


def _names(text: str) -> Iterator[str]:
    found = _NAME.findall(text)
    if ",".join(found) != text:
        raise ValueError(f"{quote(text)} is no hostlist; write it like gpu[01-04,7]")
    for name in found:
        parts: Iterable[Iterable[str]] = (
            [plain] if plain else _ranges(ranges) for ranges, plain in _PARTS.findall(name)
        )
        yield from map("".join, product(*parts))


def _ranges(text: str) -> list[str]:
    """Return the numbers of `01-04,7`, as wide as the first of each range is written."""
    numbers: list[str] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        low, high = (found[1], found[2] or found[1]) if found else ("1", "0")
        if not found or int(high) < int(low) or int(high) - int(low) >= MAX_NAMES:
            raise ValueError(f"{quote(part)} is no range of a hostlist; write it like 01-04")
        numbers += (f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1))
    return numbers
