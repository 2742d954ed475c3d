"""The CPUs that the GPUs of a job divide: as many as the job asked for. Pure.

A plan's delivery adds far CPUs to the near ones, so that a job keeps the number it asked for.
Where fewer are near, no mask of the job is wrong: a pin to the near ones would take CPUs away.
Another allocation helps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from affinityd.audit.model import SLURM, AuditedProcess, GpuKey, ProcessFacts
from affinityd.cpuset import CpuSet
from affinityd.errors import UnsatisfiableError
from affinityd.grouping import grouped
from affinityd.planner import Demand, Options, RankPlan
from affinityd.planner.planner import plan
from affinityd.request.ranks import at_most_of_whole_node
from affinityd.topology.model import Topology
from affinityd.topology.nearness import cause_of


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

        All cpusets that overlap, directly or through others, are one share; GPUs that kubelet gave
        a container count, even if others of its processes use them.
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
            if any(it.membership.job and it.membership.job.scheduler == SLURM for it in sharing):
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

        It is given if it has exactly the CPUs of a plan for as many: its request may be larger than
        its cgroups tell. A mask with the whole share is no plan's.
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
        """Return the CPUs of a process's GPUs by a plan for so many CPUs each.

        None if none of them has far CPUs.
        """
        ranks = self.ranks(share, Options(mode="node", cpus=asked)) if asked else ()
        if isinstance(ranks, str):
            return None
        gpus, near = process.facts.gpus, (process.near or frozenset()) & share.cpus
        given = [rank.cpus for rank in ranks if rank.gpu.key in gpus and rank.widening]
        return near.union(*given) if given else None


def with_allocations(
    topology: Topology, reserved: CpuSet, found: Sequence[AuditedProcess]
) -> list[AuditedProcess]:
    """Return the judgments; ALLOCATION is the cause if fewer CPUs are near than were asked for.

    `reserved` are the CPUs that no plan gives. A descendant shares what its holder does.
    """
    shares = Shares(topology, reserved)
    of_jobs = [
        it.facts
        for it in found
        if it.facts.holding and it.facts.membership.job and it.facts.cpuset and not it.is_daemon
    ]
    by_job = grouped(  # a container may have jobs of its own
        of_jobs, lambda facts: (facts.membership.job, facts.membership.outside)
    )
    share = cache(lambda cpuset, of: shares.of(cpuset, by_job[of]))
    share_of = {it.pid: share(it.cpuset, of) for of, holders in by_job.items() for it in holders}
    with_shares = ((it, share_of.get(it.facts.holder or it.facts.pid)) for it in found)
    return [it if its is None else shares.judged(it, its) for it, its in with_shares]


def _have_slices(holders: Iterable[ProcessFacts]) -> bool:
    """Return whether several holders of a Slurm job have masks of which no two overlap."""
    masks = []
    for facts in holders:
        job = facts.membership.job
        if job is None or job.scheduler != SLURM or not facts.threads:
            return False
        masks.append(facts.threads[0].mask)
    return len(masks) > 1 and sum(map(len, masks)) == len(frozenset[int]().union(*masks))


def _granted(processes: Iterable[ProcessFacts], cpus: CpuSet) -> int | None:
    """Return how many CPUs a job asked for, of those its processes may use; None: unknown.

    Slurm confines a job to its allocation. A container may use CPUs that it shares with others:
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
