"""From a demand to a plan: the planner's input and output. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from affinityd.cpuset import CpuSet
from affinityd.topology.model import Gpu


@dataclass(frozen=True)
class Options:
    """How to plan; defaults are those of the API."""

    mode: str = "node"
    scope: str = "node"
    multithreading: str = "all_logical"
    balanced: bool = True
    min_physical_cores: int = 1
    max_physical_cores: int | None = None
    share: str = "auto"
    strict: bool = False
    cpus: int | None = None  #: logical CPUs that each rank asked for; None: unknown


class Demand(NamedTuple):
    """The input of a plan: rank i drives `gpus[i]`."""

    gpus: tuple[Gpu, ...]
    allowed: CpuSet  #: online ∩ cpuset − reserved
    unreserved: CpuSet  #: online − reserved
    options: Options = Options()
    #: How many logical CPUs the ranks of a home node ask for together; missing: `options.cpus`
    #: each. A node without ranks has the number that other processes of the job ask for.
    together: Mapping[int | None, int] = {}
    #: Each rank's home node, for modes that divide its cores; None: the nearest.
    homes: tuple[int | None, ...] | None = None
    others: CpuSet = frozenset()  #: CPUs of other plans: the last to be taken as far CPUs
    cuts_cores: bool = False  #: ranks that share get as many CPUs as they ask for, not whole cores


class PlanWarning(NamedTuple):
    """A warning and its stable code; `rank` None: it is about the whole plan."""

    code: str
    message: str
    rank: int | None = None


class Widening(NamedTuple):
    """Why a rank has far CPUs: its home nodes had too few CPUs for the requests of their ranks."""

    cpus: CpuSet  #: the added CPUs
    at_home: int  #: allowed logical CPUs of the home nodes, for all of their ranks
    asked: int  #: logical CPUs that these ranks asked for together


class RankPlan(NamedTuple):
    """The plan of one rank."""

    rank: int
    gpu: Gpu
    cpus: CpuSet
    physical_cores: int
    home_node: int | None  #: the first of its home nodes
    locality: str  #: one of `nearness.LOCALITIES`
    memory_node: int | None
    threads: int  #: physical cores ÷ the ranks that share them, at least 1
    reasons: tuple[str, ...]
    widening: Widening | None = None  #: None: no far CPU was added
    is_own: bool = False  #: a launcher bound the rank to these CPUs, near or far


class Plan(NamedTuple):
    """The plans of all ranks."""

    ranks: tuple[RankPlan, ...]
    share: str  #: among which GPUs the cores were divided: "requested" or "node"
    warnings: tuple[PlanWarning, ...] = ()


def widened_cpus(ranks: Iterable[RankPlan]) -> dict[tuple[str, int], CpuSet]:
    """Return key of a GPU → CPUs of its rank, for ranks with far CPUs or with CPUs of their own."""
    return {rank.gpu.key: rank.cpus for rank in ranks if rank.widening or rank.is_own}


#: The warnings of plans.
WARNINGS = (
    "remote_home",
    "unknown_locality",
    "share_unavailable",
    "shared_gpu",
    "ambiguous_index",
    "parameter_ignored",
    "widened",
    "idle_cpus",
    "no_local_nic",
    "not_unique",
    "assumed_gpu",
    "visible_cut",
    "slow_cores",
)
