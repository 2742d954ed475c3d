"""Judges all tools alike, by the report of a machine and without affinityd's planner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, get_args

from affinityd.cpuset import CpuSet
from bench.compare.reported import Machine, Question, union

Outcome = Literal["right", "far", "overlapping", "split", "error", "unpinned"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(frozen=True)
class Answer:
    """Each rank's CPUs (None: the tool did not bind the rank), or the launch's error."""

    ranks: Sequence[CpuSet | None] = ()
    error: str | None = None


def near(machine: Machine, gpu: int, allowed: CpuSet) -> CpuSet:
    """Return the allowed CPUs of the GPU's node, else of the nearest node with allowed CPUs."""
    own = machine.gpu_node(gpu)
    inside = {node: cpus & allowed for node, cpus in machine.nodes.items() if cpus & allowed}
    best = min(machine.distance(own, node) for node in inside)
    return union(cpus for node, cpus in inside.items() if machine.distance(own, node) == best)


def judge(question: Question, answer: Answer, *, unique: bool) -> Outcome:
    """Return the worst outcome that fits an answer; `unique`: no two ranks may share a core.

    A rank that the tool did not bind counts as unpinned only if it may run on a far CPU, or was
    promised cores of its own: on a machine of one node no CPU is far.
    """
    if answer.error is not None:
        return "error"
    machine, allowed = question.machine, question.allowed
    wanted = [near(machine, gpu, allowed) for gpu in question.order]
    given = [allowed if cpus is None else cpus for cpus in answer.ranks]
    for cpus, left, best in zip(given, answer.ranks, wanted, strict=True):
        if left is None and (unique or not cpus <= best):
            return "unpinned"
    if not all(cpus and cpus <= best for cpus, best in zip(given, wanted, strict=True)):
        return "far"
    cores = [frozenset(machine.core_of[cpu] for cpu in cpus) for cpus in given]
    if unique and any(one & other for one, other in combinations(cores, 2)):
        return "overlapping"
    whole = (cpus == union(own) & allowed for cpus, own in zip(given, cores, strict=True))
    return "right" if all(whole) else "split"
