"""One request from its parts to its answer, and the answers that were given before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from affinityd.answer import Reply, render
from affinityd.cache import Cache
from affinityd.cpuset import CpuSet
from affinityd.errors import NotReadyError
from affinityd.planner import plan
from affinityd.plans import Caller, Demand, Warn
from affinityd.ranks import ranks_of
from affinityd.request import Request
from affinityd.step import cpus_of_step
from affinityd.topology import Topology

CACHED_BYTES = 16 * 1024 * 1024  #: of answers; each has its question's objects beside it
ENTRY_BYTES = 4096  #: what an entry weighs besides its answer, about
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


@dataclass(frozen=True)
class Answer:
    """An answer to a plan request, and what metrics say of it."""

    body: bytes
    media_type: str
    mode: str
    locality: str  #: the worst of any rank


class Service:
    """Answers plan requests on one node, which may be swapped for a newer reading of it."""

    def __init__(self, node: Node | None = None) -> None:
        self._node = node
        self._answers: Cache[Question, Answer] = Cache(CACHED_BYTES)
        self._forgetters: list[Callable[[], None]] = [self._answers.clear]

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
            self._answers.put(question, answer, len(answer.body) + ENTRY_BYTES)
        return answer

    def _make(self, request: Request, format_name: str, caller: Caller | None) -> Answer:
        reply = answer(self.node, request, caller)
        return Answer(
            body=render(reply, format_name).encode(),
            media_type=MEDIA_TYPES.get(format_name, "text/plain; charset=utf-8"),
            mode=request.options.mode,
            locality=reply.locality,
        )


def answer(node: Node, request: Request, caller: Caller | None = None) -> Reply:
    """Plan one request: devices meant, CPUs allowed, plan.

    `caller` is None where it is not known. Raises AffinityError.
    """
    topology = node.topology
    whole = topology.online - node.reserved
    mask, source = _cpuset(request, caller, topology)
    task = request.rank[0] if request.rank else 0
    cpuset = cpus_of_step(request.gpu_bind, request.cpu_bind, mask, task)
    if caller is not None:
        cpuset &= caller.cpuset
    ranks = ranks_of(topology, request, mask, cpuset)
    gpus = tuple(device.gpu for _, device in ranks.entries)
    made = plan(topology, Demand(gpus, whole & cpuset, whole, request.options))
    return Reply(
        node=topology.name,
        generation=node.generation,
        request=request,
        entries=tuple(name for name, _ in ranks.entries),
        wanted=ranks.wanted,
        allowed=whole & cpuset,
        source=source,
        plan=replace(made, warnings=(*made.warnings, AMBIGUOUS)) if ranks.ambiguous else made,
    )


def _cpuset(request: Request, caller: Caller | None, topology: Topology) -> tuple[CpuSet, str]:
    """Return what to plan on, never wider than the caller's cpuset, and who said so."""
    if request.cpuset is not None:
        return (request.cpuset & caller.cpuset if caller else request.cpuset), "request"
    return (caller.mask, "caller") if caller else (topology.online, "node")
