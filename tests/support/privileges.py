"""What the daemon needs for each feature, by a table of docs/settings.md.

The suite `privileges` measures the needs; the unit and the chart are checked against the table.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.paths import REPOSITORY

PAGE = REPOSITORY / "docs/settings.md"


@dataclass(frozen=True)
class Feature:
    on: tuple[str, ...]
    capabilities: tuple[str, ...]  #: without CAP_
    calls: tuple[str, ...]  #: system calls that @system-service lacks, or the unit leaves out
    reads: tuple[str, ...]  #: paths; PID in them stands for every process that is looked at
    writes: tuple[str, ...]
    namespaces: tuple[str, ...]  #: namespaces of the node, by their files in /proc/PID/ns


def _feature(on: str, powers: str, files: str) -> Feature:
    powers_, files_ = re.findall(r"`(.+?)`", powers), re.findall(r"`(.+?)`", files)
    written = " (to be written)"
    return Feature(
        on=tuple(filter(None, on.split(", "))),
        capabilities=tuple(it.removeprefix("CAP_") for it in powers_ if it.startswith("CAP_")),
        calls=tuple(it for it in powers_ if not it.startswith("CAP_")),
        reads=tuple(it for it in files_ if not it.endswith(written)),
        writes=tuple(it.removesuffix(written) for it in files_ if it.endswith(written)),
        namespaces=tuple(re.findall(r"the node's (\w+) namespace", files)),
    )


ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in PAGE.read_text().partition("| feature |")[2].partition("\n\n")[0].splitlines()[2:]
]
FEATURES = {name: _feature(*cells) for name, *cells, _ in ROWS}


def whole(name: str) -> Iterator[Feature]:
    feature = FEATURES[name]
    yield feature
    for other in feature.on:
        yield from whole(other)


def needs(name: str, kind: str) -> frozenset[str]:
    """Return all that a feature needs of a kind: capabilities, calls, reads, writes, namespaces."""
    return frozenset(item for feature in whole(name) for item in getattr(feature, kind))


def items(kind: str) -> list[str]:
    return sorted(frozenset().union(*(needs(name, kind) for name in FEATURES)))


def lost_without(kind: str, item: str) -> frozenset[str]:
    """Return the features that need this item."""
    return frozenset(name for name in FEATURES if item in needs(name, kind))
