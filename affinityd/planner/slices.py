"""CPUs that one process has alone: a Slurm step deals them, and a mode chooses among them. Pure.

A slice is the CPUs that Slurm bound one task to. Slurm gives out slices without regard to where a
task's GPU is. The tasks exchange CPUs, so that each has as many as before, shared with no other
task, and as many near its GPUs as can be. docs/slurm.md has the rule, "What each task gets".
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from affinityd.cpuset import CpuSet, format_list
from affinityd.errors import UnsatisfiableError
from affinityd.planner import Options, Plan, PlanWarning, RankPlan
from affinityd.planner.domains import given_cpus, single_bundles, usable_cores
from affinityd.planner.modes import MODES, Position
from affinityd.text import count
from affinityd.topology.model import Core, Gpu, Topology, cpus_of
from affinityd.topology.nearness import LOCAL, REMOTE, UNKNOWN, locality, vicinity

#: Whether the CPUs are only a part of a core; the core's CPUs; which of these are in the pool.
Part = tuple[bool, tuple[int, ...], tuple[int, ...]]


def deal(
    slices: Sequence[CpuSet],
    near: Sequence[CpuSet | None],
    cores: Sequence[Core],
    fixed: CpuSet = frozenset(),
) -> tuple[CpuSet, ...]:
    """Return the CPUs of each task of a step, in task order.

    `slices` are disjoint sets of online CPUs. `near` are the CPUs near each task's GPUs; None: not
    known, or the slice must stay for another reason. `cores` are the machine's, in order. CPUs that
    are `fixed` are not exchanged.
    """
    is_whole = _are_whole(slices, cores)
    if is_whole:
        fixed = cpus_of(core for core in cores if not fixed.isdisjoint(core.cpus))
    exchange = _Exchange(slices, near, fixed)
    exchange.take_slices()
    exchange.put_in(cores)
    exchange.take_near_cores()
    exchange.take_what_is_left(cores)
    dealt = tuple(exchange.dealt)
    if not is_whole or _are_whole(dealt, cores):
        return dealt
    # Cores may differ in size, if a CPU is offline: tasks with smaller cores keep their slices.
    largest = max(len(core.cpus) for core in cores)
    small = cpus_of(core for core in cores if len(core.cpus) < largest)
    if small.isdisjoint(frozenset[int]().union(*slices)):
        return tuple(slices)
    others = list(near)
    for task, cpus in enumerate(slices):
        if cpus & small:
            others[task] = None
    return deal(slices, others, [core for core in cores if len(core.cpus) == largest], fixed)


class _Exchange:
    """The tasks whose slices are not wholly near, and the CPUs that they put into the pool."""

    def __init__(
        self, slices: Sequence[CpuSet], near: Sequence[CpuSet | None], fixed: CpuSet
    ) -> None:
        self.slices = slices
        self.fixed = fixed
        self.dealt = list(slices)
        #: The near CPUs of each task that exchanges CPUs, in task order.
        self.near: dict[int, CpuSet] = {}
        for task, cpus in enumerate(slices):
            near_cpus = near[task]
            if near_cpus is not None and not cpus - fixed <= near_cpus:
                self.near[task] = near_cpus
        self.pool: set[int] = set()
        self.left: list[int] = []  #: tasks that take single cores from the pool

    def take_slices(self) -> None:
        """Give each task without near CPUs the first slice of the same size near its GPUs."""
        apart = []
        for task, near_cpus in self.near.items():
            cpus = self.slices[task]
            if cpus.isdisjoint(near_cpus) and cpus.isdisjoint(self.fixed):
                apart.append(task)
        offered = list(apart)
        for task in apart:
            for other in offered:
                cpus = self.slices[other]
                if len(cpus) == len(self.slices[task]) and cpus <= self.near[task]:
                    self.dealt[task] = cpus
                    offered.remove(other)
                    break

    def put_in(self, cores: Sequence[Core]) -> None:
        """Put the slices that were not taken into the pool; each remaining task keeps near CPUs."""
        for task in self.near:
            self.pool |= self.slices[task] - self.fixed
        for task, near_cpus in self.near.items():
            if self.dealt[task] != self.slices[task]:
                self.pool -= self.dealt[task]
            else:
                self.left.append(task)
                self.dealt[task] = self.slices[task] & (near_cpus | self.fixed)
                self.pool -= self.dealt[task]
        #: NUMA node → its parts of cores in the pool, the best first.
        self.parts: dict[int | None, list[Part]] = {}
        for core in cores:
            cpus = tuple(cpu for cpu in core.cpus if cpu in self.pool)
            if cpus:
                part = (len(cpus) < len(core.cpus), core.cpus, cpus)
                heapq.heappush(self.parts.setdefault(core.node, []), part)

    def take_near_cores(self) -> None:
        """Let the remaining tasks take a near core each, in turns."""
        taking = list(self.left)
        while taking:
            taking = [task for task in taking if self._take_near_core(task)]

    def _take_near_core(self, task: int) -> bool:
        """Give a task the best near core of the pool; return whether there was one."""
        lack = self._lack(task)
        if not lack:
            return False
        best: list[Part] = []
        for parts in self.parts.values():
            is_near = parts and parts[0][1][0] in self.near[task]
            if is_near and (not best or parts[0] < best[0]):
                best = parts
        if not best:
            return False
        _, core, cpus = heapq.heappop(best)
        rest = cpus[lack:]
        if rest:
            heapq.heappush(best, (True, core, rest))
        self._give(task, cpus[:lack])
        return True

    def take_what_is_left(self, cores: Sequence[Core]) -> None:
        """Fill the tasks up with far CPUs: whole cores first, and a task's own before others."""
        for task in self.left:
            if not self._lack(task):
                continue
            whole = [core.cpus for core in cores if self.pool.issuperset(core.cpus)]
            for cpus in self._own_first(task, whole):
                if len(cpus) <= self._lack(task):
                    self._give(task, cpus)
            single: list[tuple[int, ...]] = [(cpu,) for cpu in self.pool]
            for cpus in self._own_first(task, single):
                if self._lack(task):
                    self._give(task, cpus)

    def _own_first(self, task: int, parts: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        own = self.slices[task]

        def order(cpus: tuple[int, ...]) -> tuple[bool, tuple[int, ...]]:
            return not own.issuperset(cpus), cpus

        return sorted(parts, key=order)

    def _lack(self, task: int) -> int:
        return len(self.slices[task]) - len(self.dealt[task])

    def _give(self, task: int, cpus: Iterable[int]) -> None:
        self.dealt[task] |= frozenset(cpus)
        self.pool.difference_update(cpus)


def _are_whole(slices: Sequence[CpuSet], cores: Iterable[Core]) -> bool:
    owner: dict[int, int] = {}
    for task, cpus in enumerate(slices):
        for cpu in cpus:
            owner[cpu] = task
    for core in cores:
        owners = {owner.get(cpu) for cpu in core.cpus}
        if len(owners) > 1:
            return False
    return True


def plan_within(
    topology: Topology,
    gpus: Sequence[Gpu],
    cpus: CpuSet,
    options: Options,
    because: str,
    *,
    remedy: str = "",
    ranks: Sequence[int] = (),
) -> Plan:
    """Plan a process that has these CPUs for itself: the mode chooses within them.

    `ranks` are the numbers of its GPUs' ranks, maybe all the same; (): numbered from 0. `because`
    is the reason for these CPUs; `remedy` says how to get near CPUs if it has none.

    Raises UnsatisfiableError if `min_physical_cores` or `strict` cannot hold.
    """
    mode = MODES[options.mode]
    near = vicinity(topology, gpus)
    near_cores = []
    far_cores = []
    for core in usable_cores(topology.cores, cpus):
        if near.cpus.isdisjoint(core.cpus):
            far_cores.append(core)
        else:
            near_cores.append(core)
    cores = near_cores + far_cores
    lone = Position(0, 1, len(cores), balanced=False)
    chosen = [bundle[0] for bundle in mode.split(single_bundles(cores), lone)]
    if mode.counts and len(chosen) < options.min_physical_cores:
        raise UnsatisfiableError(
            f"min_physical_cores={options.min_physical_cores} is more than the "
            f"{count(len(chosen), 'core')} of CPUs {format_list(cpus)}"
        )
    if mode.counts and options.max_physical_cores is not None:
        chosen = chosen[: options.max_physical_cores]
    given = given_cpus(chosen, options)
    word = locality(near, given)
    far = format_list(given - near.cpus)
    if options.strict and word not in {LOCAL, UNKNOWN}:
        raise UnsatisfiableError(f"strict: CPUs {far} are not near the GPU; strict=false allows it")
    home = chosen[0].node
    plans = []
    warnings = []
    for number, gpu in zip(ranks or range(len(gpus)), gpus, strict=True):
        plans.append(
            RankPlan(
                rank=number,
                gpu=gpu,
                cpus=given,
                physical_cores=len(chosen),
                home_node=home,
                locality=word,
                memory_node=topology.memory_node(home),
                threads=max(1, len(chosen) // len(gpus)),
                reasons=(f"{near}", because),
                is_own=True,
            )
        )
        if word == REMOTE:
            message = f"rank {number}: none of its CPUs {format_list(cpus)} is near its GPU"
            if remedy:
                message += f"; {remedy} gives near CPUs"
            warnings.append(PlanWarning("remote_home", message, number))
        elif word == UNKNOWN:
            why = f"the machine does not say on which NUMA node GPU {gpu.index} is"
            warnings.append(PlanWarning("unknown_locality", f"rank {number}: {why}", number))
    return Plan(tuple(plans), "requested", tuple(warnings))
