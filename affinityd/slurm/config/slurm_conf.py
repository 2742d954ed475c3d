"""What slurm.conf says of nodes: their NodeName= lines, with the defaults before each.

Sources: slurm.conf(5) "NodeName", "INCLUDE MODIFIER"; Slurm's src/common/parse_config.c.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from affinityd.slurm.config.expected import Expected, expected
from affinityd.slurm.config.gres_files import read
from affinityd.slurm.config.gres_parser import INCLUDE, Include, Line, joined
from affinityd.slurm.config.hostlist import Budget, expand

_PAIR = re.compile(r'(?<![A-Za-z0-9_.])([A-Za-z0-9_.]+)\s*[-+*/]?=\s*(?:"([^"]*)"|(\S+))', re.ASCII)

DEFAULT = "DEFAULT"  #: the NodeName= of a line whose values hold for all lines after it

#: What the lines begin with whose other keys say nothing of the whole cluster.
_LISTS = ("partitionname", "downnodes", "frontendname", "nodeset")


@dataclass(frozen=True)
class SlurmConf:
    """What is read of a slurm.conf."""

    lines: tuple[Line, ...]  #: of NodeName=, each with its defaults
    settings: Mapping[str, str]  #: key, in lower case → value

    def nodes(self, names: Collection[str]) -> dict[str, Expected]:
        """Return what is said of each of these nodes; one that has no line is left out.

        Raises InvalidRequestError for a Gres= that cannot be read, or ranges without measure.
        """
        found: dict[str, Expected] = {}
        wanted, budget = frozenset(names), Budget()
        for line in self.lines:
            mine = [name for name in _expanded(line.values["nodename"], budget) if name in wanted]
            if mine:
                found |= dict.fromkeys(mine, expected(line.place, line.values, self.settings))
        return found

    def called(self, host: str) -> str | None:
        """Return the NodeName of a host that has another one, by NodeHostname=; None: no line."""
        budget = Budget()
        for line in self.lines:
            hosts = _expanded(line.values.get("nodehostname", ""), budget)
            names = _expanded(line.values["nodename"], budget) if host in hosts else ()
            if names:
                return names[min(hosts.index(host), len(names) - 1)]
        return None


class Parser:
    """Splits slurm.conf into lines; %c in an Include is the cluster's name, if that stands before.

    Text that is no Key=value is passed over: slurmd and slurmctld are the ones to refuse it.
    """

    def __init__(self) -> None:
        """Begin a file that may include others."""
        self._cluster = "%c"

    def __call__(self, text: str, file: str) -> Iterator[Line | Include]:
        """Yield the lines of one file."""
        for number, line in joined(text):
            place = f"{file}:{number}"
            included = INCLUDE.match(line)
            values = {key.lower(): plain or quoted for key, quoted, plain in _PAIR.findall(line)}
            if included:
                yield Include(place, included[1].replace("%c", self._cluster))
            elif values:
                self._cluster = values.get("clustername", self._cluster)
                yield Line(place, values)


def read_slurm_conf(path: Path) -> SlurmConf:
    """Read the file and those that it includes.

    An included file that cannot be read is passed over. Raises InvalidRequestError for a file that
    cannot be read, or is too long.
    """
    return slurm_conf(line for line in read(path, Parser()) if isinstance(line, Line))


def slurm_conf(lines: Iterable[Line]) -> SlurmConf:
    """Return what lines say, in their order."""
    nodes: list[Line] = []
    defaults: dict[str, str] = {}
    settings: dict[str, str] = {}
    for line in lines:
        name = line.values.get("nodename")
        if next(iter(line.values)) in _LISTS:
            continue
        if name is None:
            settings.update(line.values)
        elif name.upper() == DEFAULT:
            defaults.update(line.values)
        else:
            nodes.append(Line(line.place, {**defaults, **line.values}))
    return SlurmConf(tuple(nodes), settings)


def _expanded(hosts: str, budget: Budget) -> tuple[str, ...]:
    try:
        return expand(hosts, budget)
    except ValueError:
        return ()
