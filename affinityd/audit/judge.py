"""Judges where a process may run, seen from its GPUs. Pure: facts in, judgment out.

CPUs near any of its GPUs are near. Libraries pin threads of their own (NCCL near its NIC, OpenMP
one a core): those make no mismatch. GPUs of a job divide as many CPUs as it asked for: where fewer
are near, no mask is wrong, since a pin would take CPUs away, and another allocation helps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from affinityd.audit.model import SLURM, AuditedProcess, PlacedThread, ProcessFacts
from affinityd.cpuset import CpuSet
from affinityd.errors import UnsatisfiableError
from affinityd.grouping import grouped
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

#: Daemons of GPU nodes that may hold GPUs, by as much of the name as the kernel keeps,
#: 15 characters. A user's process, or a Slurm job's, is none of them, however it is called.
DAEMONS = frozenset(
    name[:15]
    for name in (
        *("nvidia-persistenced", "nvidia-fabricmanager", "nvidia-mig-manager", "Xorg"),
        *("nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-device-plugin"),
        *("nv-hostengine", "dcgm-exporter", "nvidia_gpu_exporter", "gpu-feature-discovery"),
        *("amd-metrics-exporter", "gpuagent", "npu-exporter"),
    )
)


class Judge:
    """Judges by one topology."""

    def __init__(self, topology: Topology) -> None:
        def found(keys: tuple[GpuKey, ...]) -> Vicinity:
            return vicinity(topology, [gpu for gpu in topology.gpus if gpu.key in keys])

        self.topology = topology
        self.vicinity = lru_cache(1024)(found)
        self._core_of = {cpu: frozenset(core.cpus) for core in topology.cores for cpu in core.cpus}

    @property
    def near(self) -> Mapping[GpuKey, CpuSet | None]:
        """The near CPUs of every GPU; None: not known."""
        return {gpu.key: _known(self.vicinity((gpu.key,))) for gpu in self.topology.gpus}

    def judge(self, facts: ProcessFacts, *, of_daemon: bool = False) -> AuditedProcess:
        """Return the judgment of a process; `of_daemon`: a known daemon has started it."""
        near = self.vicinity(facts.gpus)
        known = (facts.first_mask, *(thread.mask for thread in facts.threads[:1]))
        mains = {mask for mask in known if mask is not None}
        of_mask = {
            mask: (placement(self.topology, near, mask), self._is_its_own(mask, mains))
            for mask in {thread.mask for thread in facts.threads}
        }
        audited = AuditedProcess(
            facts,
            UNKNOWN,
            tuple(PlacedThread(thread, *of_mask[thread.mask]) for thread in facts.threads),
            is_daemon=of_daemon or is_known_daemon(facts),
            near=_known(near),
        )
        judged, words = audited.judged, {*audited.judged.values()}
        together = MIXED if len(words) > 1 else next(iter(words), UNKNOWN)  # if none of them runs
        return replace(
            audited,
            placement=UNPINNED if UNPINNED in words else together,
            cause=cause_of(judged, near.cpus, facts.cpuset),
        )

    def _is_its_own(self, mask: CpuSet, mains: Collection[CpuSet]) -> bool:
        """Whether a library chose a thread's mask: narrower than the main thread's, or one core.

        Or narrower than that was before the process was pinned without this thread.
        """
        if mask in mains:
            return False
        core = self._core_of.get(min(mask), frozenset())
        return len(mask) == 1 or mask <= core or any(mask < main for main in mains)


def is_known_daemon(facts: ProcessFacts) -> bool:
    """Return whether a process is one that runs on every node, and is not to be counted."""
    is_systems = facts.uid is not None and facts.uid < FIRST_USER
    return facts.name in DAEMONS and is_systems and facts.membership.scheduler != SLURM


def _known(near: Vicinity) -> CpuSet | None:
    return near.cpus if near.nodes else None


PinOwners = tuple[str, ...]  #: whose pins: `slurm 7`, `container cd34cd34cd34`, `session 4711`


def overlap(processes: Iterable[AuditedProcess]) -> Mapping[PinOwners, CpuSet]:
    """Return owners of unique pins, two or more → the CPUs that all these pins share.

    A pin is unique if it is a part of the near CPUs that the process could have.
    """
    pins: defaultdict[str, set[int]] = defaultdict(set)
    for process in processes:
        if process.near is not None and not process.is_daemon:
            facts = process.facts
            session = facts.pid if facts.session is None else facts.session
            could_have = process.near if facts.cpuset is None else process.near & facts.cpuset
            unique = (mask for mask in process.judged if mask < could_have)
            pins[facts.owner or f"session {session}"].update(*unique)
    cpus: defaultdict[PinOwners, set[int]] = defaultdict(set)
    for cpu in sorted(set[int]().union(*pins.values())):
        owners = tuple(sorted(owner for owner, pinned in pins.items() if cpu in pinned))
        if len(owners) > 1:
            cpus[owners].add(cpu)
    return {owners: frozenset(those) for owners, those in cpus.items()}


def divided(processes: Iterable[AuditedProcess]) -> frozenset[int]:
    """Return the pids of the processes below which another one holds other GPUs."""
    facts_of = {process.facts.pid: process.facts for process in processes}
    parents = {pid: facts.parent for pid, facts in facts_of.items()}
    return frozenset(
        above
        for facts in facts_of.values()
        if facts.holding is not None
        for above in ancestors(facts.parent, parents)
        if {*facts_of[above].gpus} != {*facts.gpus}
    )


@dataclass(frozen=True)
class Share:
    """CPUs that GPUs of a job divide between them: each GPU is a rank."""

    cpus: CpuSet  #: of cpusets that overlap: those that are online, and not reserved
    gpus: tuple[GpuKey, ...]  #: by their numbers
    granted: int | None  #: how many of the CPUs the job asked for; None: not known
    asked: int | None  #: how many each rank asked for; None: not known
    has_slices: bool = False  #: the masks of its processes are disjoint, as Slurm's slices are


class Shares:
    """The CPUs that jobs divide on one machine, and the plans for them; each is made once."""

    def __init__(self, topology: Topology, reserved: CpuSet) -> None:
        """Take the machine, and its CPUs that no plan gives."""
        self.topology = topology
        self.whole = topology.online - reserved
        self._gpus = {gpu.key: gpu for gpu in topology.gpus}
        self.ranks = cache(self._ranks)

    def of(self, cpuset: CpuSet, holders: Collection[ProcessFacts]) -> Share:
        """Return the CPUs a process with this cpuset divides with the holders of its job's GPUs.

        All cpusets that overlap, directly or through others, are one share.
        """
        cpusets = [holder.cpuset & self.whole for holder in holders if holder.cpuset]
        cpus, before = cpuset & self.whole, None
        while cpus != before:
            before = cpus
            cpus = cpus.union(*(other for other in cpusets if not other.isdisjoint(cpus)))
        sharing = [it for it in holders if it.cpuset and not it.cpuset.isdisjoint(cpus)]
        gpus: set[GpuKey] = set()
        for holder in sharing:
            gpus.update(holder.gpus, holder.given.gpus if holder.given else ())
        granted, asked = _granted(sharing, cpus), None
        if granted is not None and gpus:
            each = -(-granted // len(gpus))
            asked = each
            if any(holder.membership.scheduler == SLURM for holder in sharing):
                asked = at_most_of_whole_node(self.topology, each, granted, cpus, self.whole)
        return Share(cpus, tuple(sorted(gpus)), granted, asked, _have_slices(sharing))

    def _ranks(self, share: Share, options: Options) -> tuple[RankPlan, ...] | str:
        """Return the plan for a share, or why there is none."""
        gpus = tuple(self._gpus[gpu] for gpu in share.gpus if gpu in self._gpus)
        try:
            return plan(self.topology, Demand(gpus, share.cpus, self.whole, options)).ranks
        except UnsatisfiableError as error:
            return str(error)

    def judged(self, process: AuditedProcess, share: Share) -> AuditedProcess:
        """Return the judgment of a process, with the cause ALLOCATION where that is right.

        Its request may be larger than its cgroups tell: then it has the CPUs of a plan for as many.
        """
        if not process.is_mismatch:
            return process
        first, *others = process.judged
        is_given = False
        if share.has_slices and not others:
            is_given = True  # to pin it near would take CPUs of another task
        elif not others and not first >= share.cpus and len(first) <= (share.granted or len(first)):
            homes = Counter(self._gpus[key].numa_node for key in share.gpus if key in self._gpus)
            asks = {-(-len(first) // ranks) for ranks in (len(share.gpus), *homes.values())}
            is_given = any(self._widened(process, share, each) == first for each in asks)
        widened = first if is_given else self._widened(process, share, share.asked)
        near = process.near or frozenset()
        cause = cause_of(process.judged, near, process.facts.cpuset, widened)
        return replace(process, cause=cause)

    def _widened(self, process: AuditedProcess, share: Share, asked: int | None) -> CpuSet | None:
        """Return the CPUs of its GPUs by a plan for so many CPUs each; None: all are near."""
        ranks = self.ranks(share, Options(mode="node", cpus=asked)) if asked else ()
        if isinstance(ranks, str):
            return None
        gpus, near = process.facts.gpus, (process.near or frozenset()) & share.cpus
        given = [rank.cpus for rank in ranks if rank.gpu.key in gpus and rank.widening]
        return near.union(*given) if given else None


def with_allocations(
    topology: Topology, reserved: CpuSet, found: Sequence[AuditedProcess]
) -> list[AuditedProcess]:
    """Return the judgments; ALLOCATION is the cause if fewer CPUs are near than were asked for."""
    shares = Shares(topology, reserved)
    of_jobs = [
        it.facts
        for it in found
        if it.facts.holding and it.facts.membership.job and it.facts.cpuset and not it.is_daemon
    ]
    by_job = grouped(of_jobs, lambda facts: facts.membership.job)
    share = cache(lambda cpuset, of: shares.of(cpuset, by_job[of]))
    share_of = {it.pid: share(it.cpuset, of) for of, holders in by_job.items() for it in holders}
    with_shares = ((it, share_of.get(it.facts.holder or it.facts.pid)) for it in found)
    return [it if its is None else shares.judged(it, its) for it, its in with_shares]


def _have_slices(holders: Iterable[ProcessFacts]) -> bool:
    """Return whether several holders of a Slurm job have masks of which no two overlap."""
    masks = []
    for facts in holders:
        if facts.membership.scheduler != SLURM or not facts.threads:
            return False
        masks.append(facts.threads[0].mask)
    return len(masks) > 1 and sum(map(len, masks)) == len(frozenset[int]().union(*masks))


def _granted(processes: Iterable[ProcessFacts], cpus: CpuSet) -> int | None:
    """Return how many CPUs a job asked for, of those its processes may use; None: unknown.

    Slurm confines a job to its allocation; a container asked for no more than its CPU limit.
    """
    limits: dict[str, int] = {}
    for facts in processes:
        if facts.membership.scheduler == SLURM:
            return len(cpus) if facts.is_confined else None
        if facts.cpu_limit is None:
            return None
        limits[facts.membership.container or facts.cgroups] = facts.cpu_limit
    return min(len(cpus), sum(limits.values())) if limits else None
