"""The reply to a request: a plan, and the request as understood."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from affinityd.config import ON
from affinityd.cpuset import CpuSet
from affinityd.planner import LOCALITIES, Plan, PlanWarning, RankPlan
from affinityd.request.parameters import Request
from affinityd.topology.rdma import NearNic, verbs_ports


@dataclass(frozen=True)
class Reply:
    """A plan with all that its document says about it."""

    node: str
    generation: int
    request: Request
    entries: tuple[str, ...]  #: each rank's GPU, as the request names it, or would have
    asked_ranks: frozenset[int]  #: the requested ranks
    allowed: CpuSet
    source: str  #: of the allowed CPUs: "request", "caller" or "node"
    within: CpuSet | None  #: the caller's cpuset, which bounds them; None: it is not known
    plan: Plan
    nics: Mapping[int, tuple[NearNic, ...]]  #: of each rank, best first
    switch: str = ON  #: of the node and of the caller, together

    @cached_property
    def ranks(self) -> tuple[RankPlan, ...]:
        """The requested ranks."""
        return tuple(rank for rank in self.plan.ranks if rank.rank in self.asked_ranks)

    @property
    def warnings(self) -> tuple[PlanWarning, ...]:
        """The warnings that concern them."""
        concerned = {None, *self.asked_ranks}
        return tuple(warning for warning in self.plan.warnings if warning.rank in concerned)

    @property
    def rdma_ports(self) -> tuple[str, ...]:
        """The ranks' ports as libraries of verbs name them."""
        return verbs_ports(it for rank in self.ranks for it in self.nics[rank.rank])

    @property
    def cpus(self) -> CpuSet:
        """The union over the ranks."""
        return frozenset().union(*(rank.cpus for rank in self.ranks))

    @property
    def locality(self) -> str:
        """The worst of any rank."""
        return max((rank.locality for rank in self.ranks), key=LOCALITIES.index)
