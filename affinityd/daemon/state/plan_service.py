"""Answers plan requests on the node as it is known now, by their query strings."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import lru_cache
from urllib.parse import parse_qsl

from affinityd.config import OBSERVE
from affinityd.errors import AffinityError, InvalidRequestError, NotReadyError
from affinityd.request.formats import render
from affinityd.request.query import parse_query
from affinityd.request.ranks import asked_ranks
from affinityd.request.resolve import Caller, Reply, answer
from affinityd.text import quote
from affinityd.topology.model import Node, Topology
from affinityd.topology.nearness import UNKNOWN, placement, vicinity

MAX_FIELDS = 64  #: of a query
MOST_REPLIES = 256  #: that are remembered, for the ranks of a job and for repeated questions
JOBS_FORMAT = "shell"  #: of exec, bind, TaskProlog and a pod's run
MEDIA_TYPES = {"json": "application/json"}


@dataclass(frozen=True)
class Answer:
    """An answer to a plan request, and its labels in metrics."""

    body: bytes
    media_type: str
    mode: str
    locality: str  #: the worst of any rank
    is_of_job: bool  #: in the format that jobs take, not one of people, the page or `init`
    #: Where the caller is that stays there, one of `nearness.PLACEMENTS`; None: it takes its plan.
    observed: str | None = None


class PlanService:
    """Answers plan requests on one node, which may be swapped for a newer reading of it."""

    def __init__(self, node: Node | None = None) -> None:
        self.known = node  #: as it is known now; None before the first reading
        self.has_read = asyncio.Event()
        self._reply = lru_cache(MOST_REPLIES)(answer)

    @property
    def node(self) -> Node:
        """The node as it is known now. Raises NotReadyError before the first reading."""
        if self.known is None:
            raise NotReadyError("the machine has not been read yet; try again in a moment")
        return self.known

    def swap(self, node: Node) -> None:
        """Plan on a new reading of the node from now on."""
        self.known = node
        self._reply.cache_clear()
        self.has_read.set()

    def answer(
        self, query: bytes, caller: Caller | None = None, *, is_text: bool = False
    ) -> Answer:
        """Return the answer to a query string, as JSON unless it names a format or `is_text`.

        `caller` is None where it is not known. Raises AffinityError; its kind is the reason.
        """
        node, request = self.node, parse_query(pairs_of(query))
        form = request.format or ("cpulist" if is_text else "json")
        is_of_job = request.rank is not None and request.job is None and request.task_cpus is None
        if is_of_job and not (request.is_of_process and request.ranks is None):
            # The other ranks' replies differ in nothing else.
            reply = self._reply(node, replace(request, rank=None), caller)
            reply = replace(reply, asked_ranks=asked_ranks(request.rank, len(reply.entries)))
        else:
            reply = self._reply(node, request, caller)
        return Answer(
            body=render(reply, form).encode(),
            media_type=MEDIA_TYPES.get(form, "text/plain; charset=utf-8"),
            mode=reply.request.options.mode,
            locality=reply.locality,
            is_of_job=form == JOBS_FORMAT,
            observed=_observed(node.topology, reply, caller, form),
        )


def pairs_of(query: bytes) -> list[tuple[str, str]]:
    """Read a query string. Raises InvalidRequestError if it is not percent-encoded UTF-8."""
    if not query:
        return []
    try:
        text = query.decode("ascii")
        if bad := next((part for part in text.split("&") if "=" not in part), None):
            raise InvalidRequestError(f"{quote(bad)} has no value; write NAME=VALUE")
        return parse_qsl(
            text,
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=MAX_FIELDS,
        )
    except ValueError:
        raise InvalidRequestError(
            "the query string cannot be read; write it like gpus=0,1&mode=node, at most "
            f"{MAX_FIELDS} parameters, percent-encoded as UTF-8"
        ) from None


def mode_of(query: bytes) -> str:
    """Return the mode that a query string names, or the default; empty: it cannot be read."""
    try:
        return parse_query(pairs_of(query)).options.mode
    except AffinityError:
        return ""


def _observed(
    topology: Topology, reply: Reply, caller: Caller | None, format_name: str
) -> str | None:
    """Return the placement of a client that observes; None: it is no such client.

    A client that would apply a plan states its CPUs, or requests the format `shell`.
    """
    mask = reply.request.observe
    is_told = mask is not None or (format_name == JOBS_FORMAT and reply.request.whose == "caller")
    if reply.switch != OBSERVE or not is_told:
        return None
    mask = mask or (caller.mask if caller else reply.request.cpuset)
    if mask is None:
        return UNKNOWN
    return placement(topology, vicinity(topology, [it.gpu for it in reply.ranks]), mask)
