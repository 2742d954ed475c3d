"""Judges where a process may run, seen from its GPUs. Pure: facts in, judgment out.

CPUs near any of its GPUs are near. Threads that libraries pin (NCCL near its NIC, OpenMP one to a
core) are no mismatch. The GPUs of a job divide the CPUs that the job asked for: if too few of these
are near, no mask is wrong, since a pin would take CPUs away; the remedy is another allocation.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from affinityd.audit.model import SLURM, AuditedProcess, Job, PlacedThread, ProcessFacts
from affinityd.cpuset import CpuSet
from affinityd.errors import UnsatisfiableError
from affinityd.linux.processes import FIRST_USER, ancestors
from affinityd.planner import Demand, Options, RankPlan
from affinityd.planner.planner import plan
from affinityd.request.ranks import at_most_of_whole_node
from affinityd.topology.model import GpuKey, Topology
from affinityd.topology.nearness import (
    MIXED,
    UNKNOWN,
    UNPINNED,
    Vicinity,
    cause_of,
    placement,
    vicinity,
)

#: Daemons of GPU nodes that may hold GPUs; the kernel keeps 15 characters of a name. A process of a
#: user or of a Slurm job is never such a daemon, whatever its name.
DAEMONS = frozenset(
    name[:15]
    for name in (
        "nvidia-persistenced",
        "nvidia-fabricmanager",
        "nvidia-mig-manager",
        "nvidia-cuda-mps-control",
        "nvidia-cuda-mps-server",
        "nvidia-device-plugin",
        "nvidia_gpu_exporter",
        "nv-hostengine",
        "dcgm-exporter",
        "gpu-feature-discovery",
        "Xorg",
        "amd-metrics-exporter",
        "gpuagent",
        "npu-exporter",
    )
)


class Judge:
    """Judges processes on one topology."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.vicinity = lru_cache(1024)(self._vicinity)
        self._core_of: dict[int, CpuSet] = {}
        for core in topology.cores:
            for cpu in core.cpus:
                self._core_of[cpu] = frozenset(core.cpus)

    def _vicinity(self, keys: tuple[GpuKey, ...]) -> Vicinity:
        return vicinity(self.topology, [gpu for gpu in self.topology.gpus if gpu.key in keys])

    @property
    def near(self) -> Mapping[GpuKey, CpuSet | None]:
        """The near CPUs of every GPU; None: not known."""
        return {gpu.key: _known(self.vicinity((gpu.key,))) for gpu in self.topology.gpus}

    def judge(self, facts: ProcessFacts, *, of_daemon: bool = False) -> AuditedProcess:
        """Return the judgment of a process; `of_daemon`: its ancestor is a known daemon."""
        near = self.vicinity(facts.gpus)
        main_masks = set()
        if facts.first_mask is not None:
            main_masks.add(facts.first_mask)
        if facts.threads:
            main_masks.add(facts.threads[0].mask)
        of_mask: dict[CpuSet, tuple[str, bool]] = {}  # threads are many, masks are few
        threads = []
        for thread in facts.threads:
            mask = thread.mask
            if mask not in of_mask:
                word = placement(self.topology, near, mask)
                of_mask[mask] = (word, self._is_set_by_library(mask, main_masks))
            threads.append(PlacedThread(thread, *of_mask[mask]))
        process = AuditedProcess(
            facts,
            UNKNOWN,
            tuple(threads),
            is_daemon=of_daemon or is_known_daemon(facts),
            near=_known(near),
        )
        words = set(process.judged.values())
        if UNPINNED in words:
            together = UNPINNED
        elif len(words) > 1:
            together = MIXED
        elif words:
            (together,) = words
        else:  # no thread runs
            together = UNKNOWN
        cause = cause_of(process.judged, near.cpus, facts.cpuset)
        return replace(process, placement=together, cause=cause)

    def _is_set_by_library(self, mask: CpuSet, main_masks: Collection[CpuSet]) -> bool:
        """Whether a library set a mask: then the mask is one core, or narrower than a main mask.

        `main_masks`: the main thread's mask now, and its mask before the process was pinned.
        """
        if mask in main_masks:
            return False
        if len(mask) == 1 or mask <= self._core_of.get(min(mask), frozenset()):
            return True
        return any(mask < main for main in main_masks)


def is_known_daemon(facts: ProcessFacts) -> bool:
    """Return whether a process is one of DAEMONS; these are not counted."""
    is_systems = facts.uid is not None and facts.uid < FIRST_USER
    return facts.name in DAEMONS and is_systems and facts.membership.scheduler != SLURM


def _known(near: Vicinity) -> CpuSet | None:
    return near.cpus if near.nodes else None


PinOwners = tuple[str, ...]  #: like `slurm 7`, `container cd34cd34cd34` or `session 4711`


def overlap(processes: Iterable[AuditedProcess]) -> Mapping[PinOwners, CpuSet]:
    """Return several owners → the CPUs that each of them has pinned for its exclusive use.

    A pin counts if it is narrower than the near CPUs that the process could have.
    """
    pinned: defaultdict[str, set[int]] = defaultdict(set)
    for process in processes:
        if process.near is None or process.is_daemon:
            continue
        facts = process.facts
        could_have = process.near
        if facts.cpuset is not None:
            could_have &= facts.cpuset
        session = facts.pid if facts.session is None else facts.session
        owner = facts.owner or f"session {session}"
        for mask in process.judged:
            if mask < could_have:
                pinned[owner].update(mask)
    owners_of: defaultdict[int, list[str]] = defaultdict(list)
    for owner in sorted(pinned):
        for cpu in pinned[owner]:
            owners_of[cpu].append(owner)
    cpus: defaultdict[PinOwners, set[int]] = defaultdict(set)
    for cpu, owners in sorted(owners_of.items()):
        if len(owners) > 1:
            cpus[tuple(owners)].add(cpu)
    return {owners: frozenset(shared) for owners, shared in cpus.items()}


def divided(processes: Iterable[AuditedProcess]) -> frozenset[int]:
    """Return the pids of processes that have a holder of other GPUs below them."""
    facts_of = {process.facts.pid: process.facts for process in processes}
    parents = {pid: facts.parent for pid, facts in facts_of.items()}
    pids = set()
    for facts in facts_of.values():
        if facts.holding is not None:
            for above in ancestors(facts.parent, parents):
                if set(facts_of[above].gpus) != set(facts.gpus):
                    pids.add(above)
    return frozenset(pids)


@dataclass(frozen=True)
class Allocation:
    """The CPUs of a job, which the job's GPUs divide: each GPU counts as a rank."""

    cpus: CpuSet  #: the union of overlapping cpusets, without offline and reserved CPUs
    gpus: tuple[GpuKey, ...]  #: sorted by index
    granted: int | None  #: how many of these CPUs the job asked for; None: not known
    asked: int | None  #: how many each rank asked for; None: not known
    has_slices: bool = False  #: its processes have disjoint masks, like slices of Slurm


class Allocations:
    """The allocations of jobs on one machine, and the plans for them; each plan is made once."""

    def __init__(self, topology: Topology, reserved: CpuSet) -> None:
        """Take the machine, and its reserved CPUs."""
        self.topology = topology
        self.whole = topology.online - reserved
        self._gpus = {gpu.key: gpu for gpu in topology.gpus}
        self.ranks = cache(self._ranks)

    def of(self, cpuset: CpuSet, holders: Collection[ProcessFacts]) -> Allocation:
        """Return the allocation that this cpuset's processes share with other holders of the job.

        All cpusets that overlap, directly or through others, are one allocation.
        """
        cpusets = [holder.cpuset & self.whole for holder in holders if holder.cpuset]
        cpus = cpuset & self.whole
        before = None
        while cpus != before:
            before = cpus
            for other in cpusets:
                if not other.isdisjoint(cpus):
                    cpus |= other
        sharing = []
        gpus: set[GpuKey] = set()
        for holder in holders:
            if holder.cpuset and not holder.cpuset.isdisjoint(cpus):
                sharing.append(holder)
                gpus.update(holder.gpus)
                if holder.given is not None:
                    gpus.update(holder.given.gpus)
        granted = _granted(sharing, cpus)
        asked = None
        if granted is not None and gpus:
            asked = math.ceil(granted / len(gpus))
            if any(holder.membership.scheduler == SLURM for holder in sharing):
                asked = at_most_of_whole_node(self.topology, asked, granted, cpus, self.whole)
        return Allocation(cpus, tuple(sorted(gpus)), granted, asked, _have_slices(sharing))

    def _ranks(self, allocation: Allocation, options: Options) -> tuple[RankPlan, ...] | str:
        gpus = tuple(self._gpus[gpu] for gpu in allocation.gpus if gpu in self._gpus)
        try:
            return plan(self.topology, Demand(gpus, allocation.cpus, self.whole, options)).ranks
        except UnsatisfiableError as error:
            return str(error)

    def judged(self, process: AuditedProcess, allocation: Allocation) -> AuditedProcess:
        """Return the judgment of a process, with the cause ALLOCATION if no pin would help."""
        if not process.is_mismatch:
            return process
        first, *others = process.judged
        if not others and self._is_given(process, allocation, first):
            widened: CpuSet | None = first
        else:
            widened = self._widened(process, allocation, allocation.asked)
        near = process.near or frozenset()
        cause = cause_of(process.judged, near, process.facts.cpuset, widened)
        return replace(process, cause=cause)

    def _is_given(self, process: AuditedProcess, allocation: Allocation, mask: CpuSet) -> bool:
        """Whether the process has its only mask because its job asked for so many CPUs.

        Cgroups may not tell how many it asked for. The answer is yes if a plan for as many CPUs
        gives this mask, or if masks are Slurm's slices: a pin would take CPUs of another task.
        """
        if allocation.has_slices:
            return True
        is_more = allocation.granted is not None and 0 < allocation.granted < len(mask)
        if mask >= allocation.cpus or is_more:
            return False
        homes = Counter(self._gpus[key].numa_node for key in allocation.gpus if key in self._gpus)
        for ranks in {len(allocation.gpus), *homes.values()}:
            if self._widened(process, allocation, math.ceil(len(mask) / ranks)) == mask:
                return True
        return False

    def _widened(
        self, process: AuditedProcess, allocation: Allocation, asked: int | None
    ) -> CpuSet | None:
        """Return a process's CPUs in a plan for `asked` CPUs per GPU; None: it adds no far CPU."""
        if not asked:
            return None
        ranks = self.ranks(allocation, Options(mode="node", cpus=asked))
        if isinstance(ranks, str):
            return None
        gpus = process.facts.gpus
        given = [rank.cpus for rank in ranks if rank.gpu.key in gpus and rank.widening]
        if not given:
            return None
        near = process.near or frozenset()
        return (near & allocation.cpus).union(*given)


def with_allocations(
    topology: Topology, reserved: CpuSet, found: Sequence[AuditedProcess]
) -> list[AuditedProcess]:
    """Return the judgments; ALLOCATION is the cause if fewer CPUs are near than were asked for."""
    allocations = Allocations(topology, reserved)
    holders_of: defaultdict[Job, list[ProcessFacts]] = defaultdict(list)
    for process in found:
        job = process.facts.membership.job
        if job and process.facts.holding and process.facts.cpuset and not process.is_daemon:
            holders_of[job].append(process.facts)
    allocation_of: dict[int, Allocation] = {}  # by a holder's pid
    for holders in holders_of.values():
        by_cpuset: dict[CpuSet, Allocation] = {}
        for holder in holders:
            cpuset = holder.cpuset or frozenset()
            if cpuset not in by_cpuset:
                by_cpuset[cpuset] = allocations.of(cpuset, holders)
            allocation_of[holder.pid] = by_cpuset[cpuset]
    judged = []
    for process in found:
        allocation = allocation_of.get(process.facts.holder or process.facts.pid)
        judged.append(process if allocation is None else allocations.judged(process, allocation))
    return judged


def _have_slices(holders: Iterable[ProcessFacts]) -> bool:
    masks = []
    for facts in holders:
        if facts.membership.scheduler != SLURM or not facts.threads:
            return False
        masks.append(facts.threads[0].mask)
    return len(masks) > 1 and sum(map(len, masks)) == len(frozenset[int]().union(*masks))


def _granted(processes: Iterable[ProcessFacts], cpus: CpuSet) -> int | None:
    """Return how many of its processes' `cpus` a job asked for; None: unknown.

    Slurm confines a job to its allocation; a container asked for no more than its CPU limit.
    """
    limits: dict[str, int] = {}
    for facts in processes:
        if facts.membership.scheduler == SLURM:
            return len(cpus) if facts.is_confined else None
        if facts.cpu_limit is None:
            return None
        limits[facts.membership.container or facts.cgroups] = facts.cpu_limit
    if not limits:
        return None
    return min(len(cpus), sum(limits.values()))
