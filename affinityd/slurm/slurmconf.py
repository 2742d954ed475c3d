"""What slurm.conf says of nodes: their NodeName= lines, with the defaults before each.

Sources: slurm.conf(5) "NodeName", "INCLUDE MODIFIER"; Slurm's src/common/parse_config.c.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from affinityd.slurm.expected import Expected, expected
from affinityd.slurm.gresconf import INCLUDE, Fault, Include, Line, joined
from affinityd.slurm.hostlist import Budget, expand
from affinityd.slurm.reading import read

_PAIR = re.compile(r'([A-Za-z0-9_.]+)\s*[-+*/]?=\s*(?:"([^"]*)"|(\S+))', re.ASCII)

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


def read_slurm_conf(path: Path) -> SlurmConf:
    """Read the file and those that it includes.

    A line that Slurm would refuse is passed over. Raises InvalidRequestError for a file that cannot
    be read, or is too long.
    """
    lines: list[Line] = []
    defaults: dict[str, str] = {}
    settings: dict[str, str] = {}
    for line in _read(path):
        name = line.values.get("nodename")
        if next(iter(line.values)) in _LISTS:
            continue
        if name is None:
            settings.update(line.values)
        elif name.upper() == DEFAULT:
            defaults.update(line.values)
        else:
            lines.append(Line(line.place, {**defaults, **line.values}))
    return SlurmConf(tuple(lines), settings)


def _read(path: Path) -> Iterator[Line]:
    """Yield the lines; %c in an Include is the name of the cluster, which stands before it."""
    cluster = "%c"

    def parse(text: str, file: str) -> Iterator[Line | Include]:
        for number, line in joined(text):
            place = f"{file}:{number}"
            included = INCLUDE.match(line)
            if included:
                yield Include(place, included[1].replace("%c", cluster))
            elif values := {
                key.lower(): plain or quoted for key, quoted, plain in _PAIR.findall(line)
            }:
                yield Line(place, values)

    for line in read(path, parse):
        if not isinstance(line, Fault):
            cluster = line.values.get("clustername", cluster)
            yield line


def _expanded(hosts: str, budget: Budget) -> tuple[str, ...]:
    try:
        return expand(hosts, budget)
    except ValueError:
        return ()
