"""Answers one request, from its parts to its plan; ranks of a job share plans."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import cached_property

from affinityd.config import OBSERVE
from affinityd.daemon.state.cache import Cache
from affinityd.errors import NotReadyError, UnsatisfiableError
from affinityd.planner.model import Demand, Plan
from affinityd.planner.planner import plan
from affinityd.request.formats import json_after, json_begin, render
from affinityd.request.parameters import Request
from affinityd.request.ranks import asked_ranks
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


@dataclass(frozen=True)
class PlannedJob:
    """The reply to a rank of a job, from which those to the others follow, and its form."""

    topology: Topology
    reply: Reply
    format_name: str
    caller: Caller | None

    @property
    def weight(self) -> int:
        """Its size in bytes, about."""
        reply = self.reply
        cpus = CPU_BYTES * len(reply.allowed)
        return _asked(reply.request, self.caller) + cpus + _weight(reply.plan)

    @cached_property
    def _begin(self) -> str:
        return json_begin(self.reply)

    def answer(self, rank: int) -> Answer | None:
        """Return the answer to one of its ranks; None for one that is not there."""
        if rank >= len(self.reply.entries):
            return None
        return self.written(replace(self.reply, asked_ranks=frozenset((rank,))))

    def written(self, reply: Reply) -> Answer:
        """Return the answer to some of its ranks."""
        is_json = self.format_name == "json"
        text = json_after(self._begin, reply) if is_json else render(reply, self.format_name)
        return Answer(
            body=text.encode(),
            media_type=MEDIA_TYPES.get(self.format_name, "text/plain; charset=utf-8"),
            mode=reply.request.options.mode,
            locality=reply.locality,
            observed=_observed(self.topology, reply, self.caller, self.format_name),
        )


class PlanService:
    """Answers plan requests on one node, which may be swapped for a newer reading of it."""

    def __init__(self, node: Node | None = None) -> None:
        self.known = node  #: as it is known now; None before the first reading
        self.has_read = asyncio.Event()
        #: By generation; a text is why there is no plan.
        self._plans: Cache[tuple[int, Demand], Plan | str] = Cache(PLANNED_BYTES)
        self._jobs: Cache[tuple[int, Request, Caller | None], Reply] = Cache(PLANNED_BYTES)

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
        node, reply = self.node, self.reply(request, caller)
        return PlannedJob(node.topology, reply, format_name, caller).written(reply)

    def job(self, request: Request, format_name: str, caller: Caller | None) -> PlannedJob | None:
        """Return an answered request's job; None unless its ranks share a plan."""
        if request.rank is None or request.ranks is not None:
            return None
        reply = self._jobs.get(self._question(request, caller))
        return None if reply is None else PlannedJob(self.node.topology, reply, format_name, caller)

    def reply(self, request: Request, caller: Caller | None) -> Reply:
        """Return the reply to a request; ranks that differ in their number alone share it.

        Raises AffinityError.
        """
        if request.rank is None or request.ranks is not None:
            return answer(self.node, request, caller, planner=self._planned)
        question = self._question(request, caller)
        _, job, _ = question
        reply = self._jobs.get(question)
        if reply is None:
            try:
                reply = answer(self.node, job, caller, planner=self._planned)
            except UnsatisfiableError:  # a rank that is not there is told first
                return answer(self.node, request, caller, planner=self._planned)
            self._jobs.put(
                question, reply, PlannedJob(self.node.topology, reply, "", caller).weight
            )
        return replace(reply, asked_ranks=asked_ranks(request.rank, len(reply.entries)))

    def _question(
        self, request: Request, caller: Caller | None
    ) -> tuple[int, Request, Caller | None]:
        return self.node.generation, replace(request, rank=(0,)), caller

    def _planned(self, topology: Topology, demand: Demand) -> Plan:
        """Return a plan, made once for all the ranks of a job, each of which requests it.

        Raises UnsatisfiableError, found once, too.
        """
        question = self.node.generation, demand
        made = self._plans.get(question)
        if made is None:
            try:
                made = plan(topology, demand)
            except UnsatisfiableError as error:
                made = str(error)
            weight = RANK_BYTES if isinstance(made, str) else _weight(made)
            self._plans.put(question, made, CPU_BYTES * len(demand.allowed) + weight)
        if isinstance(made, str):
            raise UnsatisfiableError(made)
        return made


def _asked(request: Request, caller: Caller | None) -> int:
    """Return the size of a request and its caller in bytes, about: eight letters name 8192 CPUs."""
    parts = (*vars(request).values(), *(vars(caller).values() if caller else ()))
    cpus = sum(len(it) for it in parts if isinstance(it, frozenset))
    return CPU_BYTES * cpus + sum(len(it) for it in parts if isinstance(it, str))


def _weight(made: Plan) -> int:
    """Return a plan's size in bytes, about."""
    return sum(CPU_BYTES * len(rank.cpus) + RANK_BYTES for rank in made.ranks)


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
