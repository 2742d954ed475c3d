"""slurmctld's configuration of a node: its Gres= and its cores.

slurmctld drains a node that registers with fewer GPUs of a type than that (State=…+INVALID_REG).
scontrol then shows what registered, and slurm.conf alone has its Gres=: seen with 22.05 and 26.05.

Sources: slurm.conf(5) "Gres", "NodeName", "INCLUDE MODIFIER"; Slurm's src/interfaces/gres.c
(_get_gres_cnt, _merge_gres2) and src/common/{parse_config,hostlist}.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

MAX_DEPTH = 8  #: of files that include one another
MAX_RANGES = 3  #: of one name

_PAIR = re.compile(r'([A-Za-z]+)\s*=\s*(?:"([^"]*)"|(\S+))', re.ASCII)
_INCLUDE = re.compile(r"\s*include\s+(\S+)\s*$", re.IGNORECASE)
_CONTINUED = re.compile(r"\\[ \t]*\n")
_COMMENT = re.compile(r"(?<!\\)#.*")
_NAMES = re.compile(r"(?:[^\[\],]+|\[[^\[\]]*\])+")
_PART = re.compile(r"\[([^\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_SOCKETS = re.compile(r"\([^()]*\)")  #: that `scontrol show node` appends: (S:0-1)

TypeCounts = Mapping[str | None, int]  #: type → GPUs, in the order of Gres=; None: without a type


@dataclass(frozen=True)
class ExpectedNode:
    """slurmctld's configuration of a node."""

    source: str  #: slurm.conf, or the command
    gres: str  #: the value of Gres=; empty: there is none
    counts: TypeCounts
    cores: int | None = None  #: the cores that slurmctld counts; None: unknown
    cores_per_socket: int | None = None  #: of its sockets; None: unknown
    parameters: frozenset[str] = frozenset()  #: words of SlurmdParameters=, in lower case

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The types of Gres=, in its order, which is that of Slurm's GPU numbers."""
        return tuple(kind for kind in self.counts if kind is not None)

    def __str__(self) -> str:
        """Return `Gres=gpu:a100:2 (/etc/slurm/slurm.conf)`."""
        return f"Gres={self.gres or '(none)'} ({self.source})"


def expected(source: str, values: Mapping[str, str]) -> ExpectedNode:
    """Return the configuration in a node's values, as scontrol shows them; keys in lower case.

    `slurmdparameters` is slurm.conf's; `parameters` the node's own, since 26.05.
    """
    gres = values.get("gres", "")
    gres = "" if gres == "(null)" else _SOCKETS.sub("", gres)
    sockets, per_socket = (_number(values.get(key)) for key in ("sockets", "corespersocket"))
    cores = sockets * per_socket if sockets and per_socket else None
    lists = (values.get(key, "").lower() for key in ("slurmdparameters", "parameters"))
    words = frozenset(",".join(lists).split(","))
    return ExpectedNode(source, gres, _counts(gres), cores, per_socket if cores else None, words)


def written(counts: TypeCounts) -> str:
    """Return `gpu:a100:2,gpu:v100:1`."""
    return ",".join(
        f"gpu:{kind}:{count}" if kind else f"gpu:{count}" for kind, count in counts.items()
    )


def _counts(gres: str) -> TypeCounts:
    """Read `gpu:a100:2,gpu:v100,shard:8`; without a number it is one."""
    found: dict[str | None, int] = {}
    for entry in gres.replace(":no_consume", "").split(","):
        name, *kinds = entry.split(":")
        count = _number(kinds.pop()) if kinds and _number(kinds[-1]) is not None else 1
        if name == "gpu" and count:
            kind = ":".join(kinds) or None
            found[kind] = found.get(kind, 0) + count
    return found


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 7 else None  # noqa: PLR2004


def node_lines(conf: Path) -> list[tuple[str, str]]:
    """Return the NodeName= lines of a slurm.conf and of the files that it includes.

    Of each the hostlist, and the value of Gres=; empty: the line has none. What cannot be read is
    passed over.
    """
    default, found = "", []
    for line in _lines(conf, conf.parent, 0):
        values = {key.lower(): plain or quoted for key, quoted, plain in _PAIR.findall(line)}
        if values.get("nodename", "").upper() == "DEFAULT":
            default = values.get("gres", default)
        elif "nodename" in values and next(iter(values)) == "nodename":
            found.append((values["nodename"], values.get("gres", default)))
    return found


def slurmd_parameters(conf: Path) -> str:
    """Return the value of SlurmdParameters= in a slurm.conf; of several lines the last counts."""
    pairs = (_PAIR.findall(line) for line in _lines(conf, conf.parent, 0))
    values = {key.lower(): plain or quoted for found in pairs for key, quoted, plain in found}
    return str(values.get("slurmdparameters", ""))


def gres_of(node: str, lines: Sequence[tuple[str, str]]) -> str | None:
    """Return the value of a node's Gres=; None: it has no line."""
    return next((gres for hosts, gres in reversed(lines) if has_host(hosts, node)), None)


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
        text = file.read_text(errors="replace") if depth <= MAX_DEPTH else ""
    except (OSError, ValueError):  # a NUL in its name
        return
    for line in _CONTINUED.sub(" ", text).splitlines():
        plain = _COMMENT.sub("", line)
        if included := _INCLUDE.match(plain):
            yield from _lines(folder / included[1], folder, depth + 1)
        else:
            yield plain
