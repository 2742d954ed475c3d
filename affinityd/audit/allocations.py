"""Jobs with fewer CPUs near their GPUs than they asked for: no mask of theirs is a mistake. Pure.

What delivers a plan adds far CPUs to those that are near, so that such a job keeps what it asked
for. A pin to the near ones would take CPUs away; another allocation is what helps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from affinityd.audit.model import SLURM, AuditedProcess, GpuKey, Job, ProcessFacts
from affinityd.cpuset import CpuSet
from affinityd.errors import UnsatisfiableError
from affinityd.planner.model import Demand, Options, widened_cpus
from affinityd.planner.planner import plan
from affinityd.request.asked_cpus import asked_each
from affinityd.topology.model import Gpu, Topology
from affinityd.topology.nearness import cause_of

#: A job's processes with one cpuset divide it; a container may have jobs of its own.
Key = tuple[Job, str | None, CpuSet]
#: The CPUs that each GPU's processes are given, where these are more than are near.
Widened = Mapping[GpuKey, CpuSet]


def granted_number(processes: Iterable[ProcessFacts], cpus: CpuSet) -> int | None:
    """Return how many of the CPUs that a job's processes may use it asked for; None: not known.

    Slurm confines a job to what it asked for. A container may use CPUs that it shares with others:
    it asked for no more than its CPU limit.
    """
    limits: dict[str, int] = {}
    for facts in processes:
        job = facts.membership.job
        if job is not None and job.scheduler == SLURM:
            return len(cpus) if facts.is_confined else None
        if facts.cpu_limit is None:
            return None
        limits[facts.membership.container or facts.cgroups] = facts.cpu_limit
    return min(len(cpus), sum(limits.values())) if limits else None


def with_allocations(
    topology: Topology, reserved: CpuSet, found: Sequence[AuditedProcess]
) -> list[AuditedProcess]:
    """Return what was found; ALLOCATION is the cause where fewer CPUs are near than were asked for.

    `reserved` are the CPUs that no plan gives.
    """
    shares = {key: _Share(topology, reserved, key[-1], its) for key, its in _keyed(found).items()}
    share_of = {facts.pid: share for share in shares.values() for facts in share.holders}
    shares_of = ((it, share_of.get(it.facts.holder or it.facts.pid)) for it in found)
    return [it if share is None else share.judged(it) for it, share in shares_of]


def _keyed(found: Iterable[AuditedProcess]) -> Mapping[Key, Sequence[ProcessFacts]]:
    holders: defaultdict[Key, list[ProcessFacts]] = defaultdict(list)
    for it in found:
        of, cpuset = it.facts.membership, it.facts.cpuset
        if it.facts.holding is not None and not it.is_daemon and of.job is not None and cpuset:
            holders[of.job, of.outside, cpuset].append(it.facts)
    return holders


@dataclass(frozen=True, eq=False)
class _Share:
    """What the GPUs of a job divide, as far as one cpuset of its processes goes."""

    topology: Topology
    reserved: CpuSet
    cpuset: CpuSet
    holders: Sequence[ProcessFacts]

    def judged(self, process: AuditedProcess) -> AuditedProcess:
        """Return the judgement of a process, with the cause ALLOCATION where that is right."""
        if not process.is_mismatch:
            return process
        near, given = process.near or frozenset(), self._given(process)
        widened = given or self._cpus_of(process, self._granted)
        cause = cause_of(process.judged, near, process.facts.cpuset, widened)
        return replace(process, cause=cause, is_given=given is not None)

    def _given(self, process: AuditedProcess) -> CpuSet | None:
        """Return the CPUs of a process if a plan gives these to one that asks for as many.

        It may have asked for more than its cgroups tell; all of its cpuset may be no plan's.
        """
        masks = process.judged_masks
        mask = next(iter(masks), frozenset[int]())
        granted = granted_number(self.holders, self._cpus)
        is_too_wide = mask >= self._cpus or (granted is not None and len(mask) > granted)
        if len(masks) != 1 or not self._gpus or is_too_wide:
            return None
        asks = {-(-len(mask) // number) for number in (len(self._gpus), *self._at_home.values())}
        is_given = any(self._cpus_of(process, self._widened(asked)) == mask for asked in asks)
        return mask if is_given else None

    def _cpus_of(self, process: AuditedProcess, widened: Widened) -> CpuSet | None:
        """Return the CPUs of a process's GPUs; None where none of them has more than near ones."""
        given = [widened[gpu] for gpu in process.facts.gpus if gpu in widened]
        if not given:
            return None
        own = (process.near or frozenset()) & self._cpus
        return own.union(*given)

    @cached_property
    def _cpus(self) -> CpuSet:
        return (self.cpuset & self.topology.online) - self.reserved

    @cached_property
    def _gpus(self) -> tuple[Gpu, ...]:
        keys = {key for facts in self.holders for key in facts.gpus}
        return tuple(gpu for gpu in self.topology.gpus if gpu.key in keys)

    @cached_property
    def _at_home(self) -> Counter[int | None]:
        """How many of the GPUs are on each NUMA node."""
        return Counter(gpu.numa_node for gpu in self._gpus)

    @cached_property
    def _granted(self) -> Widened:
        granted = granted_number(self.holders, self._cpus)
        if granted is None or not self._gpus:
            return {}
        whole = self.topology.online - self.reserved
        return self._widened(asked_each(self.topology, granted, len(self._gpus), self._cpus, whole))

    def _widened(self, asked: int) -> Widened:
        """Return what each GPU's processes have that asked for so many CPUs a GPU."""
        if asked not in self._plans:
            whole = self.topology.online - self.reserved
            options = Options(mode="node", cpus=asked)
            try:
                made = plan(self.topology, Demand(self._gpus, self._cpus, whole, options))
                self._plans[asked] = widened_cpus(made.ranks)
            except UnsatisfiableError:
                self._plans[asked] = {}
        return self._plans[asked]

    @cached_property
    def _plans(self) -> dict[int, Widened]:
        return {}
