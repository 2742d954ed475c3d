"""`affinityd verify`: judges all threads of processes by the processes' plans. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from affinityd.audit.judge import Judge
from affinityd.audit.memory import LEAST, MOST, HostMemory
from affinityd.audit.model import AuditedProcess, ProcessFacts
from affinityd.audit.remedies import pin_command
from affinityd.cpuset import CpuSet, format_list
from affinityd.grouping import grouped
from affinityd.linux.memory_policy import MemoryPolicy
from affinityd.linux.pinning import is_on_purpose
from affinityd.linux.processes import Thread
from affinityd.planner import RankPlan, widened_cpus
from affinityd.text import count
from affinityd.topology.nearness import ALLOCATION, FAR_PLACEMENTS, Vicinity, cause_of, vicinity


@dataclass(frozen=True)
class Verification:
    """The judgment of one process by its plan."""

    process: AuditedProcess
    near: Vicinity
    policy: MemoryPolicy | None = None  #: memory policy of the main thread; None: it cannot be read
    memory: HostMemory | None = None
    least: int = LEAST  #: bytes below which far memory does not count
    is_self: bool = False  #: the process is this command, which ends now: no pin helps
    doubt: str = ""  #: why it may use other GPUs than assumed here
    remark: str = ""  #: remark that its environment and the driver name different GPUs
    far_nics: tuple[str, ...] = ()  #: sentences about RDMA devices far from the GPUs
    remedy: str = ""  #: for the threads that may run far away
    owner: str | None = None  #: what set its mask; None: nothing, or unknown

    @cached_property
    def far(self) -> Mapping[str, Sequence[Thread]]:
        """The threads that may run far away, by placement; empty if no pin fixes that."""
        if self.process.cause == ALLOCATION:
            return {}
        placed = grouped(self.process.threads, lambda placed: placed.placement)
        return {
            word: [it.thread for it in placed[word]] for word in FAR_PLACEMENTS if word in placed
        }

    def is_skipped(self, before: CpuSet) -> bool:
        """Whether a pin of a process with this mask would leave some far threads alone."""
        main = self.process.facts.threads[0].mask
        far = (thread.mask for threads in self.far.values() for thread in threads)
        return is_on_purpose(main, (before,), before) or any(
            is_on_purpose(mask, (before, main), before) for mask in far
        )

    @property
    def mismatches(self) -> tuple[str, ...]:
        """Sentences on mismatches, each with its remedy."""
        here = (f"{self._may_run(word)}, and {self.near}; {self.remedy}" for word in self.far)
        return (*here, *self.others)

    @property
    def others(self) -> Iterator[str]:
        """Mismatches other than threads that a pin would move."""
        near, policy = self.near, self.policy
        if self.process.cause == ALLOCATION:
            cpuset = self.process.facts.cpuset
            has = f"its cpuset, {format_list(cpuset or ())}, has {near.part_of(cpuset)} there"
            yield (
                f"{near}, and {has}: no pin fixes that; an allocation near the GPU does (Slurm: "
                "--gres-flags=enforce-binding; Kubernetes: kubelet's Topology Manager)"
            )
        # One near node is enough: the kernel takes the nearest node first if it may choose.
        if policy is not None and policy.nodes and policy.nodes <= near.far_memory:
            remedy = "start it with affinityd exec --memory preferred"
            yield f"its memory policy is {policy}, and {near}; {remedy}"
        yield from self._far_memory(is_most=True)
        yield from self.far_nics

    @property
    def is_judged(self) -> bool:
        """Whether the CPUs near its GPUs are known."""
        return bool(self.near.nodes) and not self.doubt

    @property
    def notes(self) -> Iterator[str]:
        """Remarks that are no mismatch, but worth attention."""
        if not self.near.nodes:
            yield f"{self.near}: it cannot be judged"
        yield from self._far_memory(is_most=False)
        yield from filter(None, (self.doubt, self.remark))

    def _may_run(self, word: str) -> str:
        threads, main = self.far[word], self.process.facts.threads[0]
        cpus = format_list(frozenset().union(*(thread.mask for thread in threads)))
        who = f"{count(len(threads), 'thread')} (first {threads[0].tid}, {threads[0].name})"
        if threads[0] == main:
            more = f" and {len(threads) - 1} more" if len(threads) > 1 else ""
            who = f"its main thread{more}"
        return f"{who} may run on CPUs {cpus} ({word})"

    def _far_memory(self, *, is_most: bool) -> Iterator[str]:
        """Yield a sentence on far memory if most memory is far; without `is_most`, if less is."""
        memory = self.memory
        if memory is None or memory.far_part is None or not memory.is_notable(self.least):
            return
        if is_most == (memory.far_part >= MOST):
            pid = None if self.is_self else self.process.facts.pid
            yield f"{memory}, and {self.near}; {memory.cause}: {memory.remedy(pid)}"


def by_plan(judge: Judge, facts: ProcessFacts, ranks: Sequence[RankPlan]) -> Verification:
    """Judge one process by the GPUs and the cpuset of its plan.

    The cause is the allocation if the job asked for more CPUs than are near, and the process may
    run on all near CPUs of the plan, too.
    """
    gpus = {rank.gpu.key: rank.gpu for rank in ranks}
    near = vicinity(judge.topology, tuple(gpus.values()), {rank.memory_node for rank in ranks})
    process = judge.judge(facts)
    every = tuple(placed._replace(pinned_itself=False) for placed in process.threads)
    process = replace(process, threads=every)
    widened = frozenset[int]().union(*widened_cpus(ranks).values())
    if not widened & near.cpus <= facts.cpus:
        widened = frozenset()
    cause = cause_of(process.judged, near.cpus, facts.cpuset, widened)
    return Verification(replace(process, cause=cause), near)


def matches(verifications: Sequence[Verification]) -> bool | None:
    """Return whether all processes are near their GPUs; None: not known."""
    if any(each.mismatches for each in verifications):
        return False
    return True if all(each.is_judged for each in verifications) else None


def with_remedy(verifications: Sequence[Verification], options: str) -> Sequence[Verification]:
    """Return the findings about a process and its descendants, with one remedy for all.

    `options` make `affinityd pin` find the same GPUs.
    """
    far = [each for each in verifications if each.far]
    is_tree = len(far) > 1
    first = verifications[0] if is_tree or not far else far[0]
    facts = first.process.facts
    is_forced = any(each.is_skipped(facts.threads[0].mask) for each in far)
    pin = pin_command(facts.pid, options, tree=is_tree, force=is_forced)
    remedy = f"{pin} fixes that"
    if first.is_self:
        remedy = f"start commands here with affinityd exec {options}-- COMMAND"
    return [replace(each, remedy=remedy) for each in verifications]
