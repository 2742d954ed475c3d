"""Hostlists, as Slurm writes names of nodes and files: `gpu[01-04,7],login2`.

Source: Slurm's src/common/hostlist.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from math import prod

from affinityd.errors import InvalidRequestError
from affinityd.text import quote

MAX_LENGTH = 255  #: of a name, in characters
MAX_HOSTS = 65536  #: of a hostlist of nodes

#: A name: brackets with ranges, and what is between them.
_NAME = re.compile(r"(?:[^\[\],]+|\[[^\[\]]*\])+")
_PARTS = re.compile(r"\[([^\]]*)\]|([^\[\]]+)")
_RANGE_INSIDE = re.compile(r"\][^\[\],]+(?:,|$)")
_RANGE = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?", re.ASCII)


@dataclass
class Budget:
    """How much the ranges of a file may still stand for: `[0-65535]` is short, and many names."""

    left: int = 2**20

    def take(self, number: int, text: str) -> None:
        """Take what a text stands for. Raises InvalidRequestError, which quotes the text."""
        self.left -= number
        if self.left < 0:
            raise InvalidRequestError(
                f"the ranges up to {quote(text)} stand for more than {Budget.left} names and cores"
            )


def nodes(text: str) -> tuple[str, ...]:
    """Return every name of nodes, where Slurm reads them all: in a name, a range comes last.

    Raises ValueError and InvalidRequestError as `expand`.
    """
    names = expand(text, Budget())
    if _RANGE_INSIDE.search(text):
        raise ValueError(f"{quote(text)} has a name that goes on after its range; Slurm reads none")
    if not names or len(names) > MAX_HOSTS:
        raise ValueError(f"{quote(text)} has {len(names)} names, and Slurm takes 1 to {MAX_HOSTS}")
    return names


def expand(text: str, budget: Budget) -> tuple[str, ...]:
    """Return every name, in order.

    Raises ValueError, one line that quotes what is no hostlist, and InvalidRequestError for more
    names than the budget has.
    """
    found = _NAME.findall(text)
    if ",".join(found) != text:
        raise ValueError(f"{quote(text)} is no hostlist; write it like gpu[01-04,7]")
    names: list[str] = []
    for name in found:
        parts = [
            [plain] if plain else _numbers(ranges, budget) for ranges, plain in _PARTS.findall(name)
        ]
        if sum(len(part[-1]) for part in parts) > MAX_LENGTH:
            raise ValueError(f"{quote(name)} is longer than {MAX_LENGTH} characters")
        budget.take(prod(map(len, parts)), name)
        names += map("".join, product(*parts))
    return tuple(names)


def _numbers(text: str, budget: Budget) -> list[str]:
    """Return the numbers of `01-04,7`, as wide as the first of each range is written."""
    numbers: list[str] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        low, high = (found[1], found[2] or found[1]) if found else ("1", "0")
        span = range(int(low), int(high) + 1)
        if not span:
            raise ValueError(f"{quote(part)} is no range of a hostlist; write it like 01-04")
        budget.take(len(span), part)
        numbers += (f"{number:0{len(low)}d}" for number in span)
    return numbers
