"""Answers one request, from its parts to its plan; ranks of a job share plans."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from affinityd.config.switch import OBSERVE
from affinityd.daemon.state.cache import Cache
from affinityd.errors import NotReadyError
from affinityd.planner.model import Demand, Plan
from affinityd.planner.planner import plan
from affinityd.request.formats import render
from affinityd.request.parameters import Request
from affinityd.request.reply import Reply
from affinityd.request.resolve import Caller, answer
from affinityd.topology.model import Node, Topology
from affinityd.topology.nearness import UNKNOWN, placement, vicinity

PLANNED_BYTES = 4 * 1024 * 1024  #: of plans, for the other ranks of a job
RANK_BYTES = 2048  #: a rank's plan without its CPUs, about
CPU_BYTES = 128  #: an element of a set, about
MEDIA_TYPES = {"json": "application/json"}


@dataclass(frozen=True)
class Answer:
    """An answer to a plan request, and its labels in metrics."""

    body: bytes
    media_type: str
    mode: str
    locality: str  #: the worst of any rank
    #: Where the caller is that stays there, one of `nearness.PLACEMENTS`; None: it takes its plan.
    observed: str | None = None


class PlanService:
    """Answers plan requests on one node, which may be swapped for a newer reading of it."""

    def __init__(self, node: Node | None = None) -> None:
        self.known = node  #: as it is known now; None before the first reading
        self.has_read = asyncio.Event()
        self._plans: Cache[tuple[int, Demand], Plan] = Cache(PLANNED_BYTES)  # by generation

    @property
    def node(self) -> Node:
        """The node as it is known now. Raises NotReadyError before the first reading."""
        if self.known is None:
            raise NotReadyError("the machine has not been read yet; try again in a moment")
        return self.known

    def swap(self, node: Node) -> None:
        """Plan on a new reading of the node from now on."""
        self.known = node
        self.has_read.set()

    def answer(self, request: Request, format_name: str, caller: Caller | None = None) -> Answer:
        """Return the answer to a request; `caller` is None where it is not known.

        Raises AffinityError; its kind is the reason.
        """
        node = self.node
        reply = answer(node, request, caller, planner=self._planned)
        return Answer(
            body=render(reply, format_name).encode(),
            media_type=MEDIA_TYPES.get(format_name, "text/plain; charset=utf-8"),
            mode=request.options.mode,
            locality=reply.locality,
            observed=_observed(node.topology, reply, caller, format_name),
        )

    def _planned(self, topology: Topology, demand: Demand) -> Plan:
        """Return a plan, made once for all the ranks of a job, each of which requests it."""
        question = self.node.generation, demand
        made = self._plans.get(question)
        if made is None:
            made = plan(topology, demand)
            cpus = len(demand.allowed) + sum(len(rank.cpus) for rank in made.ranks)
            self._plans.put(question, made, CPU_BYTES * cpus + RANK_BYTES * len(made.ranks))
        return made


def _observed(
    topology: Topology, reply: Reply, caller: Caller | None, format_name: str
) -> str | None:
    """Return the placement of a client that observes; None: it is no such client.

    A client that would apply a plan states its CPUs, or requests the format `shell`.
    """
    mask = reply.request.observe
    is_told = mask is not None or (format_name == "shell" and reply.request.whose == "caller")
    if reply.switch != OBSERVE or not is_told:
        return None
    mask = mask or (caller.mask if caller else reply.request.cpuset)
    if mask is None:
        return UNKNOWN
    return placement(topology, vicinity(topology, [it.gpu for it in reply.ranks]), mask)
