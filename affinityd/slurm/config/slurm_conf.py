"""Gres= of nodes as slurm.conf has it: of a node that is INVALID_REG slurmctld shows another.

There scontrol shows what registered, not what was configured (seen with Slurm 22.05 and 26.05).
Sources: slurm.conf(5) "NodeName", "INCLUDE MODIFIER"; Slurm's src/common/{parse_config,hostlist}.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_BYTES = 2**22  #: of a file that is read; a longer one is passed over
MAX_DEPTH = 8  #: of files that include one another
MAX_RANGES = 3  #: of one name

_PAIR = re.compile(r'([A-Za-z]+)\s*=\s*(?:"([^"]*)"|(\S+))', re.ASCII)
_INCLUDE = re.compile(r"\s*include\s+(\S+)\s*$", re.IGNORECASE)
_CONTINUED = re.compile(r"\\[ \t]*\n")
_COMMENT = re.compile(r"(?<!\\)#.*")
_NAMES = re.compile(r"(?:[^\[\],]+|\[[^\[\]]*\])+")
_PART = re.compile(r"\[([^\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


@dataclass(frozen=True)
class NodeLines:
    """The NodeName= lines of a slurm.conf and of the files that it includes."""

    gres: tuple[tuple[str, str], ...]  #: hostlist, value of Gres=; empty: the line has none

    def gres_of(self, node: str) -> str | None:
        """Return the value of a node's Gres=; None: it has no line."""
        found = [gres for hosts, gres in self.gres if has_host(hosts, node)]
        return found[-1] if found else None


def read_node_lines(conf: Path) -> NodeLines:
    """Read a slurm.conf; what cannot be read of it is passed over."""
    default, found = "", []
    for line in _lines(conf, conf.parent, 0):
        values = {key.lower(): plain or quoted for key, quoted, plain in _PAIR.findall(line)}
        if values.get("nodename", "").upper() == "DEFAULT":
            default = values.get("gres", default)
        elif "nodename" in values and next(iter(values)) == "nodename":
            found.append((values["nodename"], values.get("gres", default)))
    return NodeLines(tuple(found))


def has_host(hosts: str, name: str) -> bool:
    """Whether a hostlist, `gpu[01-04,7],login2`, has a name."""
    return any(_matches(_PART.findall(one), name) for one in _NAMES.findall(hosts))


def _matches(parts: list[tuple[str, str]], name: str) -> bool:
    ranges = [numbers for numbers, plain in parts if not plain]
    pattern = "".join(re.escape(plain) if plain else r"(\d+)" for _, plain in parts)
    found = re.fullmatch(pattern, name, re.ASCII) if len(ranges) <= MAX_RANGES else None
    return found is not None and all(map(_is_in, found.groups(), ranges))


def _is_in(number: str, ranges: str) -> bool:
    """Whether `01-04,7` has a number, which is as wide as the first of its range is written."""
    for low, high in _RANGE.findall(ranges):
        is_wide = len(number) == max(len(low), len(str(int(number))))
        if is_wide and int(low) <= int(number) <= int(high or low):
            return True
    return False


def _lines(file: Path, folder: Path, depth: int) -> Iterator[str]:
    """Yield the lines, those of included files where they are named, without comments."""
    try:
        if depth > MAX_DEPTH or not file.is_file() or file.stat().st_size > MAX_BYTES:
            return
        text = file.read_text(errors="replace")
    except OSError:
        return
    for line in _CONTINUED.sub(" ", text).splitlines():
        plain = _COMMENT.sub("", line)
        included = _INCLUDE.match(plain)
        if included:
            yield from _lines(folder / included[1], folder, depth + 1)
        else:
            yield plain
