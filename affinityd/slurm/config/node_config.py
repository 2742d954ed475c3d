"""What a gres.conf says of one node's GPUs. Source: Slurm's src/interfaces/gres.c."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from affinityd.cpuset import parse_list
from affinityd.errors import InvalidRequestError
from affinityd.slurm.config.gres_parser import Fault, Line
from affinityd.slurm.config.hostlist import Budget, expand
from affinityd.slurm.machine.core_affinity import Numbers
from affinityd.text import quote

#: How Slurm finds GPUs itself; `off` is that it does not.
DETECTORS = ("nvml", "nvidia", "rsmi", "oneapi", "nrt", "full", "off")

#: Of one node. Source: src/interfaces/gres.c (MAX_GRES_BITMAP).
MAX_GPUS = 1024

_SPAN = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)
_LINKS = re.compile(r" *-?\d{1,4}(?:, *-?\d{1,4}){0,255}", re.ASCII)


@dataclass(frozen=True)
class GpuLine:
    """A line of GPUs."""

    place: str  #: file:line
    name: str  #: Slurm's is gpu, and no other case
    kind: str | None  #: Type=, of which case counts; None: there is none
    files: tuple[str, ...]  #: (): none is named
    cores: Numbers | None  #: None: no Cores=
    links: tuple[int, ...] | None  #: None: no Links=
    count: str | None  #: as it is written; None: no Count=
    is_slice: bool  #: MultipleFiles=, a MIG instance: one GPU may have several


@dataclass(frozen=True)
class Configured:
    """What there is for one node."""

    gpus: tuple[GpuLine, ...]  #: in Slurm's order
    detector: str | None  #: of `DETECTORS`, but not `off`; None: Slurm has the lines alone
    others: tuple[str, ...]  #: NodeName= of the lines of GPUs that are for other nodes
    faults: tuple[Fault, ...]

    @cached_property
    def types(self) -> Mapping[str, str | None]:
        """The type of each device file, but for those of MIG instances."""
        lines = [line for line in self.gpus if not line.is_slice]
        return {file: line.kind for line in lines for file in line.files}


def for_node(lines: Iterable[Line], node: str) -> Configured:
    """Return what a node's GPUs are by these lines. `node`: its NodeName in slurm.conf.

    Lines without NodeName= come before those that have one, wherever they are in the file: Slurm
    keeps two lists. Raises InvalidRequestError for more than fits a file, or a node.
    """
    budget = Budget()
    whose = [(line, _whose(line, node, budget)) for line in lines]
    mine = [line for line, is_mine in whose if is_mine is True]
    mine.sort(key=lambda line: "nodename" in line.values)
    others = [line for line, is_mine in whose if is_mine is False]
    read = [_read(line, budget) for line in mine]
    gpus = tuple(line for line in read if isinstance(line, GpuLine))
    if sum(len(line.files) or 1 for line in gpus) > MAX_GPUS:
        raise InvalidRequestError(f"{node} has more than {MAX_GPUS} GPUs, the most in Slurm")
    return Configured(
        gpus=gpus,
        detector=_detector(mine),
        others=tuple(line.values["nodename"] for line in others if _is_of_gpus(line)),
        faults=tuple(it for it in (*(fault for _, fault in whose), *read) if isinstance(it, Fault)),
    )


def _whose(line: Line, node: str, budget: Budget) -> bool | Fault:
    """Return whether a line is for a node."""
    hosts = line.values.get("nodename")
    if hosts is None:
        return True
    try:
        return node in expand(hosts, budget)
    except ValueError as error:
        return Fault(line.place, f"NodeName={quote(hosts)}: {error}")


def _is_of_gpus(line: Line) -> bool:
    return line.values.get("name", "gpu").lower() == "gpu"


def _read(line: Line, budget: Budget) -> GpuLine | Fault | None:
    """Return a line of GPUs; None for one of other devices."""
    try:
        _check(line.values)
        is_of_gpus = line.values.get("name", "").lower() == "gpu"
        return _gpu_line(line, budget) if is_of_gpus else None
    except ValueError as error:
        return Fault(line.place, str(error))


def _check(values: Mapping[str, str]) -> None:
    """Raise ValueError for keys that do not go together, or no detector."""
    detector = values.get("autodetect")
    if detector is not None and _known(detector) is None:
        raise ValueError(f"AutoDetect={quote(detector)} is not one of {', '.join(DETECTORS)}")
    if detector is not None and "name" in values and "nodename" not in values:
        raise ValueError("AutoDetect= takes effect in a line of devices only after NodeName=")
    if not values.keys() & {"name", "autodetect"}:
        raise ValueError("Name= is missing; for GPUs it is Name=gpu")


def _known(text: str) -> str | None:
    return next((name for name in DETECTORS if name in text.lower()), None)


def _detector(mine: Sequence[Line]) -> str | None:
    """Return what finds the GPUs: the node's own AutoDetect= counts more than that of all."""
    said = {
        "nodename" in line.values: _known(line.values["autodetect"])
        for line in mine
        if "autodetect" in line.values
    }
    found = said.get(True) or said.get(False)
    return None if found == "off" else found


def _gpu_line(line: Line, budget: Budget) -> GpuLine:
    """Read the values of a line. Raises ValueError, one line that names the key."""
    values = line.values
    file = _either(values, "file", "files", "multiplefiles")
    cores = _either(values, "cores", "cpus")
    links = _either(values, "links", "link")
    files = () if file is None else expand(file, budget)
    return GpuLine(
        place=line.place,
        name=values["name"],
        kind=values.get("type") or None,
        files=files,
        cores=None if cores is None else _cores(cores, len(files), budget),
        links=None if links is None else _links(links),
        count=values.get("count"),
        is_slice="multiplefiles" in values,
    )


def _either(values: Mapping[str, str], *keys: str) -> str | None:
    return next((values[key] for key in keys if key in values), None)


def _cores(text: str, files: int, budget: Budget) -> Numbers:
    """Read `Cores=`, which each of so many files has."""
    for low, high in _SPAN.findall(text):
        cores = max(1, int(high or low) - int(low) + 1)
        budget.take(cores * max(1, files), text)
    try:
        return parse_list(text)
    except ValueError:
        raise ValueError(
            f"Cores={quote(text)} is no list of core numbers; write it like 0-3,8,10-11"
        ) from None


def _links(text: str) -> tuple[int, ...]:
    if not _LINKS.fullmatch(text):
        raise ValueError(
            f"Links={quote(text)} is no list of numbers of links; write it like -1,4,0,4"
        )
    return tuple(map(int, text.split(",")))
