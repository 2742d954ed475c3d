"""Answers plan requests on the node as it is known now."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from affinityd.config import OBSERVE
from affinityd.errors import NotReadyError
from affinityd.request.formats import render
from affinityd.request.parameters import Request
from affinityd.request.resolve import Caller, Reply, first_answer
from affinityd.topology.model import Node, Topology
from affinityd.topology.nearness import UNKNOWN, placement, vicinity

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

    def answer(
        self, requests: Iterable[Request], format_name: str, caller: Caller | None = None
    ) -> Answer:
        """Return the answer to the first of the requests that is not to be retried.

        `caller` is None where it is not known. Raises AffinityError; its kind is the reason.
        """
        node = self.node
        reply = first_answer(node, requests, caller)
        return Answer(
            body=render(reply, format_name).encode(),
            media_type=MEDIA_TYPES.get(format_name, "text/plain; charset=utf-8"),
            mode=reply.request.options.mode,
            locality=reply.locality,
            observed=_observed(node.topology, reply, caller, format_name),
        )


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
