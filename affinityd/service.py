"""One request from its parts to its answer, and the answers that were given before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from affinityd.answer import Reply, render
from affinityd.asked import asked_cpus
from affinityd.cache import Cache
from affinityd.cpuset import CpuSet, format_list
from affinityd.errors import NotReadyError, UnsatisfiableError, quote
from affinityd.planner import plan
from affinityd.plans import Caller, Demand, Plan, Warn
from affinityd.ranks import ranks_of
from affinityd.request import Request
from affinityd.step import cpus_of_step
from affinityd.switch import OBSERVE, ON, least
from affinityd.topology import Topology
from affinityd.vicinity import UNKNOWN, placement, vicinity_of_any

CACHED_BYTES = 16 * 1024 * 1024  #: of answers and their questions
ENTRY_BYTES = 4096  #: what an entry weighs besides the texts and CPUs in it, about
PLANNED_BYTES = 4 * 1024 * 1024  #: of plans, for the other ranks of a job
RANK_BYTES = 2048  #: what a rank's plan weighs besides its CPUs, about
LETTER_BYTES = 4  #: the most that one of a text takes
CPU_BYTES = 128  #: what one of a set takes, about
MEDIA_TYPES = {"json": "application/json"}

AMBIGUOUS = Warn(
    "ambiguous_index",
    "this machine has GPUs of several models, which CUDA numbers fastest first: an index is "
    "PCI order here, and the process's only with CUDA_DEVICE_ORDER=PCI_BUS_ID; name UUIDs "
    "to be sure",
)


#: A request, the format of its answer, and who asks.
Question = tuple[Request, str, Caller | None]


@dataclass(frozen=True, eq=False)  # to compare two would compare two machines, core by core
class Node:
    """What plans are made from; replaced whole, never changed."""

    topology: Topology
    reserved: CpuSet = frozenset()
    generation: int = 1
    replayed: bool = False  #: it is not the machine that it was read on
    switch: str = ON  #: what AFFINITYD says for the node


@dataclass(frozen=True)
class Answer:
    """An answer to a plan request, and what metrics say of it."""

    body: bytes
    media_type: str
    mode: str
    locality: str  #: the worst of any rank
    #: Where the caller is that stays there, one of `vicinity.PLACEMENTS`; None: it takes its plan.
    observed: str | None = None


class Service:
    """Answers plan requests on one node, which may be swapped for a newer reading of it."""

    def __init__(self, node: Node | None = None) -> None:
        self._node = node
        self._answers: Cache[Question, Answer] = Cache(CACHED_BYTES)
        self._plans: Cache[Demand, Plan] = Cache(PLANNED_BYTES)
        self._forgetters: list[Callable[[], None]] = [self._answers.clear, self._plans.clear]

    @property
    def known(self) -> Node | None:
        """The node as it is known now; None before the first reading."""
        return self._node

    @property
    def node(self) -> Node:
        """The node as it is known now. Raises NotReadyError before the first reading."""
        if self._node is None:
            raise NotReadyError("the machine has not been read yet; try again in a moment")
        return self._node

    def swap(self, node: Node) -> None:
        """Plan on a new reading of the node from now on."""
        self._node = node
        for forget in self._forgetters:
            forget()

    def on_swap(self, forget: Callable[[], None]) -> None:
        """Call this, too, whenever answers that were given before stop being true."""
        self._forgetters.append(forget)

    def answer(self, request: Request, format_name: str, caller: Caller | None = None) -> Answer:
        """Return the answer to a request; `caller` is None where it is not known.

        Raises AffinityError, whose kind says why there is none.
        """
        question = (request, format_name, caller)
        answer = self._answers.get(question)
        if answer is None:
            answer = self._make(request, format_name, caller)
            self._answers.put(question, answer, _weight(request, caller) + len(answer.body))
        return answer

    def _make(self, request: Request, format_name: str, caller: Caller | None) -> Answer:
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
        """Return a plan, made once for all the ranks of a job, each of which asks for its own."""
        made = self._plans.get(demand)
        if made is None:
            made = plan(topology, demand)
            cpus = len(demand.allowed) + sum(len(rank.cpus) for rank in made.ranks)
            self._plans.put(demand, made, CPU_BYTES * cpus + RANK_BYTES * len(made.ranks))
        return made


def answer(
    node: Node,
    request: Request,
    caller: Caller | None = None,
    *,
    planner: Callable[[Topology, Demand], Plan] = plan,
) -> Reply:
    """Plan one request: devices meant, CPUs allowed, plan.

    `caller` is None where it is not known. Raises AffinityError.
    """
    topology = node.topology
    whole = topology.online - node.reserved
    caller = None if request.whose == "node" else caller
    within = caller.cpuset if caller else None
    mask, source = _cpuset(request, caller, topology)
    task = request.rank[0] if request.rank else 0
    cpuset = cpus_of_step(request.gpu_bind, request.cpu_bind, mask, task)
    if within is not None:
        cpuset &= within
    ranks = ranks_of(topology, request, mask, cpuset)
    gpus = tuple(device.gpu for _, device in ranks.entries)
    allowed = whole & cpuset
    asked = asked_cpus(topology, request, ranks, allowed, whole)
    request = replace(request, options=replace(request.options, cpus=asked))
    made = planner(topology, Demand(gpus, allowed, whole, request.options))
    return Reply(
        node=topology.name,
        generation=node.generation,
        request=request,
        entries=tuple(name for name, _ in ranks.entries),
        wanted=ranks.wanted,
        allowed=allowed,
        source=source,
        within=within,
        plan=replace(made, warnings=(*made.warnings, AMBIGUOUS)) if ranks.ambiguous else made,
        switch=least(node.switch, ON if request.observe is None else OBSERVE),
    )


def _observed(
    topology: Topology, reply: Reply, caller: Caller | None, format_name: str
) -> str | None:
    """Return where a caller is that stays there, seen from the GPUs of its plan; None: it moves.

    Clients that would apply a plan say where they run, or ask for the format `shell`.
    """
    mask = reply.request.observe
    is_told = mask is not None or (format_name == "shell" and reply.request.whose == "caller")
    if reply.switch != OBSERVE or not is_told:
        return None
    mask = mask or (caller.mask if caller else reply.request.cpuset)
    if mask is None:
        return UNKNOWN
    return placement(topology, vicinity_of_any(topology, [it.gpu for it in reply.ranks]), mask)


def _cpuset(request: Request, caller: Caller | None, topology: Topology) -> tuple[CpuSet, str]:
    """Return what to plan on, never wider than the caller's cpuset, and who said so.

    Raises UnsatisfiableError where the request names no CPU of that.
    """
    if request.cpuset is None:
        return (caller.mask, "caller") if caller else (topology.online, "node")
    if caller is None or caller.cpuset is None:
        return request.cpuset, "request"
    cpus = request.cpuset & caller.cpuset
    if not cpus:
        asked, own = (quote(format_list(it)) for it in (request.cpuset, caller.cpuset))
        raise UnsatisfiableError(
            f"cpuset: none of {asked} is in the caller's own cpuset, {own}; name CPUs of that, or "
            "leave cpuset out"
        )
    return cpus, "request"


def _weight(request: Request, caller: Caller | None) -> int:
    """Return what a question weighs that is remembered, in bytes, about."""
    texts = (*(request.gpus or ()), *(request.job or ()), request.gpu_bind, request.visible)
    more = (request.granted, request.nvidia_visible)
    own = (caller.mask, caller.cpuset) if caller else ()
    letters = sum(len(text) for text in (*texts, *more) if text)
    sets = (request.cpuset, request.observe, *request.cpu_bind, *own)
    cpus = sum(len(cpus) for cpus in sets if cpus)
    return LETTER_BYTES * letters + CPU_BYTES * cpus + ENTRY_BYTES
