"""What slurmctld was configured with for a node: its Gres= and its cores.

slurmctld drains a node that registers with fewer GPUs of a type than that (State=…+INVALID_REG).
Sources: slurm.conf(5) "Gres"; Slurm's src/interfaces/gres.c (_get_gres_cnt, _merge_gres2) and
src/common/read_config.c (_parse_nodename).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from affinityd.errors import InvalidRequestError
from affinityd.slurm.machine.core_affinity import Cores, Numbers
from affinityd.text import quote

#: What follows `gpu:` in Gres=: an optional type, and how many; without a number it is one.
_GPUS = re.compile(
    r"gpu(?::(?P<type>[^:]*[^:\d][^:]*|\d+(?=:)))?(?::(?P<count>\d{1,9}))?", re.ASCII
)

_SOCKETS = re.compile(r"\([^()]*\)")  #: that `scontrol show node` appends: (S:0-1)
_NUMBER = re.compile(r"\d{1,6}", re.ASCII)

Counts = Mapping[str | None, int]  #: type → GPUs, in the order of Gres=; None: without a type


@dataclass(frozen=True)
class Expected:
    """What slurmctld expects of a node."""

    place: str  #: file:line, or the command that was asked
    gres: str  #: the value of Gres=; empty: there is none
    counts: Counts
    cores: int | None = None  #: the cores that slurmctld counts; None: it is not configured
    cores_per_socket: int | None = None  #: of its sockets; None: it is not configured
    lacks_gpus: bool = False  #: GresTypes= is known, and has no gpu
    sockets_are_nodes: bool = False  #: SlurmdParameters=numa_node_as_socket

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The types of Gres=, in its order, which is that of Slurm's GPU numbers."""
        return tuple(kind for kind in self.counts if kind is not None)

    @property
    def is_mixed(self) -> bool:
        """Whether some GPUs have a type and others have none, at which slurmd ends."""
        return bool(self.types) and None in self.counts

    def are_sockets(self, cores: Numbers) -> bool | None:
        """Return whether cores are whole sockets to slurmctld; None: not known.

        Source: Slurm's src/interfaces/gres.c (_check_core_range_matches_sock).
        """
        size = self.cores_per_socket
        if size is None:
            return True if self.sockets_are_nodes else None
        return len(cores) == size * len({core // size for core in cores})

    def __str__(self) -> str:
        """Return `Gres=gpu:a100:2 (/etc/slurm/slurm.conf:12)`."""
        return f"Gres={self.gres or '(none)'} ({self.place})"


@dataclass(frozen=True)
class Unknown:
    """Why nobody here tells what slurmctld was configured with."""

    why: str


def expected(place: str, values: Mapping[str, str], settings: Mapping[str, str]) -> Expected:
    """Return what the values of a node's line say; all keys are in lower case.

    `settings`: what slurm.conf says of the whole cluster. Raises InvalidRequestError.
    """
    gres = values.get("gres", "")
    gres = "" if gres == "(null)" else _SOCKETS.sub("", gres)
    types = settings.get("grestypes")
    sockets, cores_per_socket = _sockets(values) or (None, None)
    return Expected(
        place=place,
        gres=gres,
        counts=_counts(gres, place),
        cores=sockets and cores_per_socket and sockets * cores_per_socket,
        cores_per_socket=cores_per_socket,
        lacks_gpus=types is not None and "gpu" not in types.split(","),
        sockets_are_nodes="numa_node_as_socket" in settings.get("slurmdparameters", "").lower(),
    )


def are_whole_sockets(some: Numbers, cores: Cores, expected: Expected | None) -> bool:
    """Return whether some cores are whole sockets to slurmctld: packages, where it is not known."""
    told = None if expected is None else expected.are_sockets(some)
    return cores.of_packages(some) == some if told is None else told


def written(counts: Counts) -> str:
    """Return `gpu:a100:2,gpu:v100:1`."""
    parts = (
        (("gpu", kind, str(count)) if kind else ("gpu", str(count)))
        for kind, count in counts.items()
    )
    return ",".join(map(":".join, parts))


def _counts(gres: str, place: str) -> Counts:
    found: dict[str | None, int] = {}
    for entry in gres.replace(":no_consume", "").split(","):
        name, *kinds = entry.split(":")
        count = int(kinds.pop()) if kinds and _NUMBER.fullmatch(kinds[-1]) else 1
        is_odd = "" in kinds or not "".join(kinds).isprintable() or {'"', "'"} & {*"".join(kinds)}
        if name == "gpu" and (len(kinds) > 1 or is_odd):
            raise InvalidRequestError(
                f"{place}: {quote(entry)} in Gres= is not written like gpu:a100:2"
            )
        if name == "gpu" and count:
            kind = kinds[0] if kinds else None
            found[kind] = found.get(kind, 0) + count
    return found


def _sockets(values: Mapping[str, str]) -> tuple[int, int] | None:
    """Return a node's sockets, and cores of each; None where its line says nothing of CPUs.

    Without Sockets= they follow from CPUs=: with CPUs= alone, each CPU is a core to slurmctld.
    """
    numbers = {key: int(text) for key, text in values.items() if _NUMBER.fullmatch(text)}
    cpus = numbers.get("cpus", numbers.get("procs"))
    if cpus is None and not numbers.keys() & {"sockets", "socketsperboard", "corespersocket"}:
        return None
    cores, threads = (numbers.get(key) or 1 for key in ("corespersocket", "threadspercore"))
    boards = numbers.get("boards") or 1
    if "socketsperboard" in numbers:
        sockets = boards * numbers["socketsperboard"]
    elif "sockets" in numbers:
        sockets = numbers["sockets"]
    else:
        sockets = boards if cpus is None or cpus % (cores * threads) else cpus // (cores * threads)
    return max(sockets, 1), cores
