"""`affinityd verify`: the audit's judgment of processes, with their plans. Pure.

Every thread counts, also one that a library pinned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from affinityd.audit.judge import Judge
from affinityd.audit.model import AuditedProcess, ProcessFacts
from affinityd.audit.remedies import (
    ALLOCATE_NEAR,
    MOVE_MEMORY,
    PIN_FIXES,
    START_HERE,
    START_WITH_MEMORY,
    pin_command,
)
from affinityd.cpuset import CpuSet, format_list, several
from affinityd.grouping import grouped
from affinityd.linux.memory_policy import MemoryPolicy
from affinityd.linux.pinning import is_on_purpose
from affinityd.linux.processes import Thread
from affinityd.planner import RankPlan, widened_cpus
from affinityd.text import count
from affinityd.topology.nearness import ALLOCATION, FAR, Vicinity, cause_of, vicinity

#: Resident memory away from the GPUs is mentioned from this part on. Pages of files and of shared
#: memory lie where another process touched them first, so that some of it always is.
MENTIONED = 0.1
#: From this part on it is a mismatch: the process filled its memory before it was pinned.
MOST = 0.5


@dataclass(frozen=True)
class Verification:
    """The judgment of one process by its plan."""

    process: AuditedProcess
    near: Vicinity
    policy: MemoryPolicy | None = None  #: its main thread's memory policy; None: it cannot be read
    resident: Mapping[int, int] | None = None  #: NUMA node → bytes; None: not requested
    is_self: bool = False  #: the command itself, which ends with its answer: no pin helps it
    doubts: tuple[str, ...] = ()  #: why it may have been judged by other GPUs than it uses
    far_nics: tuple[str, ...] = ()  #: sentences on RDMA devices away from the GPUs
    nics: Mapping[str, str] = field(default_factory=dict)  #: RDMA device that is open → its link
    remedy: str = ""  #: of the threads that may run far away

    @cached_property
    def far(self) -> Mapping[str, Sequence[Thread]]:
        """The threads that may run far away, by placement; none where no pin fixes that."""
        if self.process.cause == ALLOCATION:
            return {}
        placed = grouped(self.process.threads, lambda placed: placed.placement)
        return {word: [it.thread for it in placed[word]] for word in FAR if word in placed}

    @property
    def main(self) -> CpuSet:
        """The mask of its main thread, which a pin takes as the intended one."""
        return self.process.facts.threads[0].mask

    def is_skipped(self, before: CpuSet) -> bool:
        """Whether a pin, of a process with this mask, would leave some of the far threads alone."""
        far = [thread.mask for threads in self.far.values() for thread in threads]
        return any(
            is_on_purpose(mask, usual, before)
            for mask, usual in [(self.main, (before,)), *((it, (before, self.main)) for it in far)]
        )

    @property
    def mismatches(self) -> tuple[str, ...]:
        """Sentences, each with its remedy."""
        here = (f"{self._may_run(word)}, and {self.near}; {self.remedy}" for word in self.far)
        return (*here, *self.others)

    @property
    def others(self) -> tuple[str, ...]:
        """The mismatches that are not of threads that a pin moves."""
        return (
            *([self._allocation()] if self.process.cause == ALLOCATION else []),
            *self._policy(),
            *(text for part, text in self._resident() if part >= MOST),
            *self.far_nics,
        )

    @property
    def is_judged(self) -> bool:
        """Whether it is known which CPUs are near the GPUs that it uses."""
        return bool(self.near.nodes) and not self.doubts

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks that are no mismatch, but worth a look."""
        return (
            *([] if self.near.nodes else [f"{self.near}: it cannot be judged"]),
            *(text for part, text in self._resident() if part < MOST),
            *([f"RDMA devices open: {_linked(self.nics)}"] if self.nics else []),
            *self.doubts,
        )

    def _may_run(self, word: str) -> str:
        threads, main = self.far[word], self.process.facts.threads[0]
        cpus = format_list(frozenset().union(*(thread.mask for thread in threads)))
        who = f"{count(len(threads), 'thread')} (first {threads[0].tid}, {threads[0].name})"
        if threads[0] == main:
            more = f" and {len(threads) - 1} more" if len(threads) > 1 else ""
            who = f"its main thread{more}"
        return f"{who} may run on CPUs {cpus} ({word})"

    def _allocation(self) -> str:
        cpuset = self.process.facts.cpuset
        few, cpus = self.near.part_of(cpuset), format_list(cpuset or ())
        return f"{self.near}, and its cpuset, {cpus}, has {few} there: {ALLOCATE_NEAR}"

    def _policy(self) -> Iterator[str]:
        policy = self.policy
        # One near node is enough: where it may choose, the kernel takes the nearest first.
        if policy is not None and policy.nodes and policy.nodes <= self.near.far_memory:
            yield f"its memory policy is {policy}, and {self.near}; {START_WITH_MEMORY}"

    def _resident(self) -> Iterator[tuple[float, str]]:
        """Yield which part of its memory is far, and a sentence on it; nothing if little."""
        resident, near = self.resident or {}, format_list(self.near.memory)
        far = {node: size for node, size in resident.items() if node in self.near.far_memory}
        part = sum(far.values()) / (sum(resident.values()) or 1)
        if part >= MENTIONED:
            pid = self.process.facts.pid
            moves = MOVE_MEMORY.format(pid=pid, far=format_list(far), near=near)
            where = f"{part:.0%} of its resident memory is on {several('node', far)}"
            yield part, f"{where}, and {self.near}; {START_WITH_MEMORY if self.is_self else moves}"


def _linked(nics: Mapping[str, str]) -> str:
    return ", ".join(f"{device} ({link})" for device, link in nics.items())


def by_plan(judge: Judge, facts: ProcessFacts, ranks: Sequence[RankPlan]) -> Verification:
    """Judge one process by the GPUs and the cpuset of its plan.

    It is a mismatch if any thread may run far from them. Far CPUs that its job asked for are the
    allocation's fault.
    """
    gpus = {rank.gpu.key: rank.gpu for rank in ranks}
    near = vicinity(judge.topology, tuple(gpus.values()), {rank.memory_node for rank in ranks})
    process = judge.judge(facts)
    every = tuple(placed._replace(pinned_itself=False) for placed in process.threads)
    process = replace(process, threads=every)
    widened = frozenset[int]().union(*widened_cpus(ranks).values())
    cause = cause_of(process.judged, near.cpus, facts.cpuset, widened)
    return Verification(replace(process, cause=cause), near)


def matches(verifications: Sequence[Verification]) -> bool | None:
    """Return whether all processes are near their GPUs; None: that is not known."""
    if any(it.mismatches for it in verifications):
        return False
    return True if all(it.is_judged for it in verifications) else None


def with_remedy(verifications: Sequence[Verification], options: str) -> Sequence[Verification]:
    """Return the findings about a process and its descendants, with one remedy for all.

    One pin of the tree moves all threads that may run far away. `options` are those with
    which a pin finds the same GPUs.
    """
    far = [it for it in verifications if it.far]
    is_tree = len(far) > 1
    first = verifications[0] if is_tree or not far else far[0]
    is_forced = any(each.is_skipped(first.main) for each in far)
    pin = pin_command(first.process.facts.pid, options, tree=is_tree, force=is_forced)
    remedy = PIN_FIXES.format(pin=pin)
    if first.is_self:
        remedy = START_HERE.format(options=options)
    return [replace(it, remedy=remedy) for it in verifications]
