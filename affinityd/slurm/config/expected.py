"""What slurmctld was configured with for a node: its Gres= and its cores.

slurmctld drains a node that registers with fewer GPUs of a type than that (State=…+INVALID_REG).
Sources: slurm.conf(5) "Gres"; Slurm's src/interfaces/gres.c (_get_gres_cnt, _merge_gres2).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from affinityd.slurm.machine.core_affinity import CoreNumbers, SlurmCores

_SOCKETS = re.compile(r"\([^()]*\)")  #: that `scontrol show node` appends: (S:0-1)

TypeCounts = Mapping[str | None, int]  #: type → GPUs, in the order of Gres=; None: without a type


@dataclass(frozen=True)
class ExpectedNode:
    """What slurmctld expects of a node."""

    source: str  #: slurm.conf, or the command that was asked
    gres: str  #: the value of Gres=; empty: there is none
    counts: TypeCounts
    cores: int | None = None  #: the cores that slurmctld counts; None: it does not say
    cores_per_socket: int | None = None  #: of its sockets; None: it does not say

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The types of Gres=, in its order, which is that of Slurm's GPU numbers."""
        return tuple(kind for kind in self.counts if kind is not None)

    @property
    def is_mixed(self) -> bool:
        """Whether some GPUs have a type and others have none, at which slurmd ends."""
        return bool(self.types) and None in self.counts

    def are_sockets(self, cores: CoreNumbers) -> bool | None:
        """Return whether cores are whole sockets to slurmctld; None: not known.

        Source: Slurm's src/interfaces/gres.c (_check_core_range_matches_sock).
        """
        size = self.cores_per_socket
        return None if size is None else len(cores) == size * len({core // size for core in cores})

    def __str__(self) -> str:
        """Return `Gres=gpu:a100:2 (/etc/slurm/slurm.conf)`."""
        return f"Gres={self.gres or '(none)'} ({self.source})"


@dataclass(frozen=True)
class UnknownNode:
    """Why it is not known what slurmctld was configured with."""

    why: str


def expected(source: str, values: Mapping[str, str]) -> ExpectedNode:
    """Return what a node's values say, as scontrol shows them; all keys are in lower case."""
    gres = values.get("gres", "")
    gres = "" if gres == "(null)" else _SOCKETS.sub("", gres)
    sockets, per_socket = (_number(values.get(key)) for key in ("sockets", "corespersocket"))
    cores = sockets * per_socket if sockets and per_socket else None
    return ExpectedNode(source, gres, _counts(gres), cores, per_socket if cores else None)


def are_whole_sockets(some: CoreNumbers, cores: SlurmCores, node: ExpectedNode | None) -> bool:
    """Return whether some cores are whole sockets to slurmctld: packages, where it is not known."""
    told = None if node is None else node.are_sockets(some)
    return cores.of_packages(some) == some if told is None else told


def written(counts: TypeCounts) -> str:
    """Return `gpu:a100:2,gpu:v100:1`."""
    parts = (
        (("gpu", kind, str(count)) if kind else ("gpu", str(count)))
        for kind, count in counts.items()
    )
    return ",".join(map(":".join, parts))


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
