"""`affinityd verify`: a running process against the GPUs of its plan. Pure: facts go in.

Where a thread ran last is shown and not judged: a thread that sleeps ran there long ago.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from affinityd.cpuset import CpuSet, format_list, several
from affinityd.linux.memory_policy import MemoryPolicy
from affinityd.linux.processes import Thread
from affinityd.planner.model import RankPlan, widened_cpus
from affinityd.text import count
from affinityd.topology.model import Topology
from affinityd.topology.nearness import ALLOCATION, FAR, Vicinity, cause_of, placement, vicinity

#: Resident memory away from the GPUs is mentioned from this part on. Pages of files and of shared
#: memory lie where another process touched them first, so that some of it always is.
MENTIONED = 0.1
#: From this part on it is a mismatch: the process filled its memory before it was pinned.
MOST = 0.5

PREFERRED = "start it with affinityd exec --memory preferred"


@dataclass(frozen=True)
class RunningProcess:
    """What is found of one process."""

    pid: int
    name: str
    threads: tuple[Thread, ...]  #: the main one first, never none
    policy: MemoryPolicy | None = None  #: its main thread's memory policy; None: it cannot be read
    resident: Mapping[int, int] | None = None  #: NUMA node → bytes; None: not asked for
    is_self: bool = False  #: the command itself, which ends with its answer: no pin helps it


@dataclass(frozen=True)
class Verification:
    """The judgement of one process."""

    process: RunningProcess
    near: Vicinity
    placements: tuple[str, ...]  #: of its threads, in their order
    far: tuple[str, ...]  #: sentences: which threads may run far away
    needs_force: bool  #: a pin would leave some of them alone
    remedy: str  #: of those
    others: tuple[str, ...]  #: other mismatches: sentences, each with its remedy
    notes: tuple[str, ...]  #: sentences of what is no mismatch, and worth a look

    @property
    def mismatches(self) -> tuple[str, ...]:
        """Sentences, each with its remedy."""
        return (*(f"{it}; {self.remedy}" for it in self.far), *self.others)


def verified(
    topology: Topology,
    ranks: Sequence[RankPlan],
    allowed: CpuSet,
    process: RunningProcess,
    options: str = "",
) -> Verification:
    """Judge one process against the GPUs of its plan.

    `allowed` are the CPUs of its cpuset, `options` those with which a pin finds the same GPUs. It
    is a mismatch if any thread may run far from the GPUs. Far CPUs that its job asked for are the
    allocation's fault.
    """
    near = vicinity(
        topology,
        tuple({rank.gpu.key: rank.gpu for rank in ranks}.values()),
        {rank.memory_node for rank in ranks},
    )
    placements = tuple(placement(topology, near, thread.mask) for thread in process.threads)
    resident = tuple(_resident(near, process))
    widened = frozenset[int]().union(*widened_cpus(ranks).values())
    masks = {it.mask: word for it, word in zip(process.threads, placements, strict=True)}
    is_allocated = cause_of(masks, near.cpus, allowed, widened) == ALLOCATION
    groups = () if is_allocated else tuple(_groups(process, placements))
    needs_force = any(it.mask != process.threads[0].mask for _, those in groups for it in those)
    return Verification(
        process,
        near,
        placements,
        far=tuple(f"{_may_run(word, those, process)}, and {near}" for word, those in groups),
        needs_force=needs_force,
        remedy=_exec_command(options)
        if process.is_self
        else pin_command(process.pid, options, force=needs_force),
        others=(
            *([_allocation(near, allowed)] if is_allocated else []),
            *_policy(near, process),
            *(text for part, text in resident if part >= MOST),
        ),
        notes=(
            *([] if near.nodes else [f"{near}: it cannot be judged"]),
            *(text for part, text in resident if part < MOST),
        ),
    )


def with_one_remedy(
    findings: Sequence[Verification], options: str = ""
) -> tuple[Verification, ...]:
    """Return the findings of a process and its descendants, with one remedy for several of them.

    One pin of the whole tree moves all threads that may run far away.
    """
    first, *below = findings
    far = [it for it in findings if it.far]
    if len(far) <= 1:
        return (first, *below)
    main = first.process.threads[0].mask
    # As `affinityd pin` sees it: what is confined to less than the first may be so on purpose.
    force = any(it.needs_force or not it.process.threads[0].mask >= main for it in far)
    remedy = pin_command(first.process.pid, options, force=force, tree=True)
    return tuple(replace(it, remedy=remedy) for it in findings)


def pin_command(pid: int, options: str, *, force: bool, tree: bool = False) -> str:
    """Return the remedy that pins a process, or its whole tree; `options` name its GPUs."""
    flags = ("--tree " if tree else "") + ("--force " if force else "")
    return f"affinityd pin {flags}{options}{pid} mends that"


def _exec_command(options: str) -> str:
    return f"what is started here is to be started with affinityd exec {options}-- COMMAND"


def _allocation(near: Vicinity, allowed: CpuSet) -> str:
    there = len(near.cpus & allowed)
    few = f"only {count(there, 'CPU')}" if there else "no CPU"
    return (
        f"{near}, and its cpuset, {format_list(allowed)}, has {few} there: no pin mends that, "
        "but an allocation that follows the GPU (Slurm: --gres-flags=enforce-binding; "
        "Kubernetes: the kubelet's Topology Manager)"
    )


def _groups(
    process: RunningProcess, placements: Sequence[str]
) -> Iterator[tuple[str, list[Thread]]]:
    """Yield the threads that may run far away, by their placement."""
    placed = [*zip(process.threads, placements, strict=True)]
    for word in FAR:
        if those := [thread for thread, its in placed if its == word]:
            yield word, those


def _may_run(word: str, threads: Sequence[Thread], process: RunningProcess) -> str:
    may_run = format_list(frozenset().union(*(thread.mask for thread in threads)))
    return f"{_named(threads, process.threads[0])} may run on CPUs {may_run} ({word})"


def _policy(near: Vicinity, process: RunningProcess) -> Iterator[str]:
    policy = process.policy
    # One near node is enough: where it may choose, the kernel takes the nearest first.
    if policy is not None and policy.nodes and policy.nodes <= near.far_memory:
        yield f"its memory policy is {policy}, and {near}; {PREFERRED}"


def _resident(near: Vicinity, process: RunningProcess) -> Iterator[tuple[float, str]]:
    """Yield which part of the resident memory is far, and a sentence on it; nothing if little."""
    resident = process.resident or {}
    far = {node: size for node, size in resident.items() if node in near.far_memory}
    part = sum(far.values()) / (sum(resident.values()) or 1)
    if part >= MENTIONED:
        moves = f"migratepages {process.pid} {format_list(far)} {format_list(near.memory)} moves it"
        remedy = PREFERRED if process.is_self else moves
        where = f"{part:.0%} of its resident memory is on {several('node', far)}"
        yield part, f"{where}, and {near}; {remedy}"


def _named(threads: Sequence[Thread], main: Thread) -> str:
    if threads[0] != main:
        return f"{count(len(threads), 'thread')} (first {threads[0].tid}, {threads[0].name})"
    return "its main thread" + (f" and {len(threads) - 1} more" if len(threads) > 1 else "")
