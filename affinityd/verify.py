"""Is a running process where its GPUs are? The facts are others' to gather; here they are judged.

Where a thread ran last is shown and not judged: a thread that sleeps was last somewhere long ago.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from affinityd.cpuset import CpuSet, format_list
from affinityd.memory import Held
from affinityd.plans import RankPlan
from affinityd.processes import Thread
from affinityd.topology import Gpu, Topology
from affinityd.words import count

LOCAL = "local"  #: may run near its GPUs alone
MIXED = "mixed"  #: near and far
REMOTE = "remote"  #: far alone
UNPINNED = "unpinned"  #: on every online CPU, and some of them are far
UNKNOWN = "unknown"  #: the machine does not say where its GPUs are

#: Resident memory away from the GPUs is mentioned from this part on. Pages of files and of shared
#: memory lie where somebody else touched them first, so that some of it always is.
MENTIONED = 0.1
#: From this part on it is a mismatch: the process filled its memory before it was pinned.
MOST = 0.5


@dataclass(frozen=True)
class Facts:
    """What is found of one process."""

    pid: int
    name: str
    threads: tuple[Thread, ...]  #: the main one first, never none
    policy: Held | None = None  #: its main thread's memory policy; None: it cannot be read
    resident: Mapping[int, int] | None = None  #: NUMA node → bytes; None: nobody asked


@dataclass(frozen=True)
class Vicinity:
    """What is near to the GPUs of a process: to any of them, as if they were one."""

    gpus: tuple[Gpu, ...]
    nodes: tuple[int | None, ...]  #: the NUMA nodes of the near CPUs; (): unknown
    cpus: CpuSet
    memory: frozenset[int]  #: the nodes whose memory is near
    far_memory: frozenset[int]  #: those whose memory is near to other CPUs

    def __str__(self) -> str:
        """Say it in a few words: `GPU 0 is on node 3`."""
        names = _several("GPU", (gpu.index for gpu in self.gpus))
        on = {gpu.numa_node for gpu in self.gpus if gpu.numa_node is not None}
        verb = "is" if len(self.gpus) == 1 else "are"
        return f"{names} {verb} on {_several('node', on) if on else 'an unknown node'}"


@dataclass(frozen=True)
class Finding:
    """The judgement of one process."""

    facts: Facts
    near: Vicinity
    placements: tuple[str, ...]  #: of its threads, in their order
    mismatches: tuple[str, ...]  #: sentences, each with what mends it
    notes: tuple[str, ...]  #: what is worth a look and no mismatch


def vicinity(topology: Topology, ranks: Sequence[RankPlan]) -> Vicinity:
    """Return what is near to the GPUs of a plan.

    Near is the GPU's own node, or the nearest ones that have CPUs, whatever the process may use of
    them; of GPUs whose node is unknown nothing is known, unless all CPUs are in one node.
    """
    gpus = tuple({rank.gpu.key: rank.gpu for rank in ranks}.values())
    nodes = _near_nodes(topology, gpus)
    homes = {rank.memory_node for rank in ranks}.union(*map(topology.memory_nodes, nodes))
    memory = frozenset(node for node in homes if node is not None)
    with_cpus = frozenset(node for node in topology.nodes_with_cpus if node is not None)
    return Vicinity(
        gpus,
        nodes,
        cpus=frozenset(cpu for node in nodes for cpu in topology.cpus_of_node(node)),
        memory=memory,
        far_memory=with_cpus - memory if nodes else frozenset(),
    )


def _near_nodes(topology: Topology, gpus: Sequence[Gpu]) -> tuple[int | None, ...]:
    with_cpus = topology.nodes_with_cpus
    if len(with_cpus) == 1:
        return with_cpus
    known = [gpu.numa_node for gpu in gpus if gpu.numa_node is not None]
    near = {node for own in known for node in topology.nearest(own, with_cpus)}
    return tuple(node for node in with_cpus if node in near)


def placement(topology: Topology, near: Vicinity, mask: CpuSet) -> str:
    """Return where a mask is, seen from the GPUs."""
    if not near.nodes:
        return UNKNOWN
    if mask <= near.cpus or len(near.nodes) == len(topology.nodes_with_cpus):
        return LOCAL
    if mask >= topology.online:
        return UNPINNED
    return REMOTE if mask.isdisjoint(near.cpus) else MIXED


def judge(
    topology: Topology,
    ranks: Sequence[RankPlan],
    allowed: CpuSet,
    facts: Facts,
    options: str = "",
) -> Finding:
    """Judge one process against the GPUs of its plan.

    `allowed` is what its cgroup lets it use, `options` what a pin needs to find the same GPUs. It
    is a mismatch if any thread may run far from the GPUs: one that pinned itself to some of the
    near CPUs may not.
    """
    near = vicinity(topology, ranks)
    placements = tuple(placement(topology, near, thread.mask) for thread in facts.threads)
    resident = tuple(_resident(near, facts))
    return Finding(
        facts,
        near,
        placements,
        mismatches=(
            *_threads(near, allowed, facts, placements, options),
            *_policy(near, facts),
            *(text for part, text in resident if part >= MOST),
        ),
        notes=(
            *([] if near.nodes else [f"{near}: it cannot be judged"]),
            *(text for part, text in resident if part < MOST),
        ),
    )


def _threads(
    near: Vicinity, allowed: CpuSet, facts: Facts, placements: Sequence[str], options: str
) -> Iterator[str]:
    far = [word for word in (MIXED, REMOTE, UNPINNED) if word in placements]
    if far and near.cpus.isdisjoint(allowed):
        yield (
            f"{near}, and its cpuset, {format_list(allowed)}, has no CPU there: no pin mends that, "
            "but an allocation that follows the GPU (Slurm: --gres-flags=enforce-binding; "
            "Kubernetes: the kubelet's Topology Manager)"
        )
        return
    main = facts.threads[0]
    for word in far:
        those = [it for it, its in zip(facts.threads, placements, strict=True) if its == word]
        may_run = format_list(frozenset().union(*(thread.mask for thread in those)))
        force = "" if all(thread.mask == main.mask for thread in those) else "--force "
        yield (
            f"{_who(those, main)} may run on CPUs {may_run} ({word}), and {near}; "
            f"affinityd pin {force}{options}{facts.pid} mends that"
        )


def _policy(near: Vicinity, facts: Facts) -> Iterator[str]:
    policy = facts.policy
    # One near node is enough: where it may choose, the kernel takes the nearest first.
    if policy is not None and policy.nodes and policy.nodes <= near.far_memory:
        yield (
            f"its memory policy is {policy}, and {near}; "
            "start it with affinityd exec --memory preferred"
        )


def _resident(near: Vicinity, facts: Facts) -> Iterator[tuple[float, str]]:
    """Yield which part of the resident memory is far, and how that is said; nothing if little."""
    resident = facts.resident or {}
    far = {node: size for node, size in resident.items() if node in near.far_memory}
    part = sum(far.values()) / (sum(resident.values()) or 1)
    if part >= MENTIONED:
        homes = format_list(near.memory)
        text = (
            f"{part:.0%} of its resident memory is on {_several('node', far)}, and {near}; "
            f"migratepages {facts.pid} {format_list(far)} {homes} moves it"
        )
        yield part, text


def _who(threads: Sequence[Thread], main: Thread) -> str:
    if threads[0] != main:
        return f"{count(len(threads), 'thread')} (first {threads[0].tid}, {threads[0].name})"
    return "its main thread" + (f" and {len(threads) - 1} more" if len(threads) > 1 else "")


def _several(noun: str, numbers: Iterable[int]) -> str:
    """Return `node 3`, or `nodes 3-5`."""
    those = set(numbers)
    return f"{noun if len(those) == 1 else f'{noun}s'} {format_list(those)}"
