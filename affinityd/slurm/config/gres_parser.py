"""gres.conf(5), as text: lines, and the keys of each.

What is no line is a Fault, and the rest is read all the same; slurmd itself ends at it. Source:
Slurm's src/common/parse_config.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from affinityd.text import quote

#: What a line may have, src/interfaces/gres.c (_gres_options), in its own spelling.
KEYS = (
    *("NodeName", "Name", "Type", "File", "Files", "MultipleFiles", "Cores", "CPUs", "Count"),
    *("Links", "Link", "Flags", "AutoDetect"),
)
_KEYS = {key.lower() for key in KEYS}

#: What a line may begin with.
FIRST = ("name", "nodename", "autodetect")

_PAIR = re.compile(r'\s*([A-Za-z0-9_.]+)\s*=\s*(?:"([^"]*)"|(\S+))(?:\s+|$)', re.ASCII)
_COMMENT = re.compile(r"(?<!\\)((?:\\\\)*)#.*")
_CONTINUED = re.compile(r"(?<!\\)((?:\\\\)*)\\\s*$")
INCLUDE = re.compile(r"include\s+(\S{1,1024})\s*$", re.IGNORECASE)


@dataclass(frozen=True)
class Line:
    """A line that has been read."""

    place: str  #: file:line
    values: Mapping[str, str]  #: key, in lower case → value


@dataclass(frozen=True)
class Include:
    """A line that stands for the lines of another file."""

    place: str
    path: str


@dataclass(frozen=True)
class Fault:
    """What cannot be read."""

    place: str
    text: str


def parse(text: str, file: str) -> Iterator[Line | Include | Fault]:
    """Yield what the lines of a file say, each at the number of its first line."""
    for number, line in joined(text):
        place = f"{file}:{number}"
        included = INCLUDE.match(line)
        if included:
            yield Include(place, included[1])
        elif line.strip():
            yield _line(place, line)


def joined(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines, each with the number of its first, without comments; continued ones joined."""
    first, whole = 1, ""
    for number, line in enumerate(text.split("\n"), start=1):
        first = first if whole else number
        plain = _COMMENT.sub(r"\1", line)
        joined, goes_on = _CONTINUED.subn(r"\1", plain)
        whole += joined
        if not goes_on:
            yield first, re.sub(r"\\(.)", r"\1", whole)
            whole = ""
    if whole:
        yield first, whole


def _line(place: str, text: str) -> Line | Fault:
    values: dict[str, str] = {}
    end = 0
    while end < len(text):
        pair = _PAIR.match(text, end)
        if pair is None:
            rest = text[end:].strip()
            return Fault(place, f"{quote(rest)} is not written as Key=value")
        key, quoted, plain = pair.groups()
        if key.lower() not in _KEYS:
            return Fault(place, f"{quote(key)} is no key; there are {', '.join(KEYS)}")
        values[key.lower()] = plain if quoted is None else quoted  # of two, the last counts
        end = pair.end()
    first = next(iter(values))
    if first not in FIRST:
        return Fault(place, "the line begins with neither Name= nor NodeName=")
    if first == "autodetect" and len(values) > 1:
        return Fault(place, "AutoDetect= with other keys must follow NodeName=")
    return Line(place, values)
