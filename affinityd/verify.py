"""Is a running process where its GPUs are? The facts are others' to gather; here they are judged.

Where a thread ran last is shown and not judged: a thread that sleeps was last somewhere long ago.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from affinityd.cpuset import CpuSet, format_list
from affinityd.memory import Held
from affinityd.plans import RankPlan
from affinityd.processes import Thread
from affinityd.topology import Topology
from affinityd.vicinity import (
    MIXED,
    REMOTE,
    UNPINNED,
    Vicinity,
    placement,
    several,
    vicinity,
)
from affinityd.words import count

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
class Finding:
    """The judgement of one process."""

    facts: Facts
    near: Vicinity
    placements: tuple[str, ...]  #: of its threads, in their order
    mismatches: tuple[str, ...]  #: sentences, each with what mends it
    notes: tuple[str, ...]  #: what is worth a look and no mismatch


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
    near = vicinity(
        topology,
        tuple({rank.gpu.key: rank.gpu for rank in ranks}.values()),
        {rank.memory_node for rank in ranks},
    )
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
            f"{part:.0%} of its resident memory is on {several('node', far)}, and {near}; "
            f"migratepages {facts.pid} {format_list(far)} {homes} moves it"
        )
        yield part, text


def _who(threads: Sequence[Thread], main: Thread) -> str:
    if threads[0] != main:
        return f"{count(len(threads), 'thread')} (first {threads[0].tid}, {threads[0].name})"
    return "its main thread" + (f" and {len(threads) - 1} more" if len(threads) > 1 else "")
