"""The CPUs that the GPUs of a job divide: as many as the job asked for. Pure.

A plan's delivery adds far CPUs to the near ones, so that a job keeps the number it asked for.
Where fewer are near, no mask of the job is wrong: a pin to the near ones would take CPUs away.
Another allocation helps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from affinityd.audit.model import SLURM, AuditedProcess, GpuKey, Job, ProcessFacts
from affinityd.cpuset import CpuSet
from affinityd.errors import UnsatisfiableError
from affinityd.planner import Demand, Options, RankPlan
from affinityd.planner.planner import plan
from affinityd.request.ranks import at_most_of_whole_node
from affinityd.topology.model import Topology
from affinityd.topology.nearness import cause_of

#: GPUs that processes of a job hold, or have held, each with the cpuset of such a process.
HeldGpus = frozenset[tuple[GpuKey, CpuSet]]


@dataclass(frozen=True)
class Share:
    """CPUs that GPUs of a job divide between them: each GPU is a rank."""

    cpus: CpuSet  #: of cpusets that overlap: those that are online, and not reserved
    gpus: tuple[GpuKey, ...]  #: by their numbers
    granted: int | None  #: how many of the CPUs the job asked for; None: not known


class Shares:
    """The CPUs that jobs divide on one machine, and the plans for them; each is made once."""

    def __init__(self, topology: Topology, reserved: CpuSet) -> None:
        """Take the machine, and its CPUs that no plan gives."""
        self.topology = topology
        self.whole = topology.online - reserved
        self._gpus = {gpu.key: gpu for gpu in topology.gpus}
        self.asked = cache(self._asked)
        self.ranks = cache(self._ranks)

    def of(
        self, cpuset: CpuSet, holders: Collection[ProcessFacts], held: HeldGpus = frozenset()
    ) -> Share:
        """Return the CPUs a process with this cpuset divides with the holders of its job's GPUs.

        `held`: more GPUs that count.
        """
        cpus = _together(
            cpuset & self.whole, {it.cpuset & self.whole for it in holders if it.cpuset}
        )
        sharing = [it for it in holders if it.cpuset and not it.cpuset.isdisjoint(cpus)]
        gpus = {gpu for gpu, its in held if not its.isdisjoint(cpus)}
        gpus.update(gpu for it in sharing for gpu in it.gpus_given)
        return Share(cpus, tuple(sorted(gpus)), _granted(sharing, cpus))

    def _asked(self, share: Share) -> int | None:
        """Return how many CPUs each rank asked for; None: not known."""
        if share.granted is None or not share.gpus:
            return None
        ranks = len(share.gpus)
        each = -(-share.granted // ranks)
        return at_most_of_whole_node(self.topology, each, share.granted, share.cpus, self.whole)

    def _ranks(self, share: Share, options: Options) -> tuple[RankPlan, ...] | str:
        gpus = tuple(self._gpus[gpu] for gpu in share.gpus if gpu in self._gpus)
        try:
            return plan(self.topology, Demand(gpus, share.cpus, self.whole, options)).ranks
        except UnsatisfiableError as error:
            return str(error)

    def judged(self, process: AuditedProcess, share: Share) -> AuditedProcess:
        """Return the judgment of a process, with the cause ALLOCATION where that is right."""
        if not process.is_mismatch:
            return process
        near, given = process.near or frozenset(), self._given(process, share)
        widened = given or self._widened(process, share, self.asked(share))
        cause = cause_of(process.judged, near, process.facts.cpuset, widened)
        return replace(process, cause=cause, is_given=given is not None)

    def _given(self, process: AuditedProcess, share: Share) -> CpuSet | None:
        """Return the CPUs of a process if a plan for as many CPUs gives exactly these.

        Its request may be larger than its cgroups tell; a plan may not give exactly its cpuset.
        """
        masks = process.judged_masks
        mask = next(iter(masks), frozenset[int]())
        is_too_wide = mask >= share.cpus or len(mask) > (share.granted or len(mask))
        if len(masks) != 1 or is_too_wide:
            return None
        at_home = Counter(gpu.numa_node for key, gpu in self._gpus.items() if key in share.gpus)
        asks = {-(-len(mask) // number) for number in (len(share.gpus), *at_home.values())}
        return mask if any(self._widened(process, share, it) == mask for it in asks) else None

    def _widened(self, process: AuditedProcess, share: Share, asked: int | None) -> CpuSet | None:
        """Return the CPUs of a process's GPUs by a plan for so many CPUs each.

        None if none of them has far CPUs.
        """
        ranks = self.ranks(share, Options(mode="node", cpus=asked)) if asked else ()
        its = [it for it in ranks if not isinstance(it, str) and it.gpu.key in process.facts.gpus]
        given = [rank.cpus for rank in its if rank.widening]
        near = (process.near or frozenset()) & share.cpus
        return near.union(*given) if given else None


def with_allocations(
    topology: Topology, reserved: CpuSet, found: Sequence[AuditedProcess]
) -> list[AuditedProcess]:
    """Return the judgments; ALLOCATION is the cause if fewer CPUs are near than were asked for.

    `reserved` are the CPUs that no plan gives.
    """
    shares = Shares(topology, reserved)
    holders: defaultdict[tuple[Job, str | None], list[ProcessFacts]] = defaultdict(list)
    for it in found:
        of = it.facts.membership
        if it.facts.holding and not it.is_daemon and of.job and it.facts.cpuset:
            holders[of.job, of.outside].append(it.facts)  # a container may have jobs of its own
    share = cache(lambda cpuset, of: shares.of(cpuset, holders[of]))
    share_of = {it.pid: share(it.cpuset, of) for of, its in holders.items() for it in its}
    with_shares = ((it, share_of.get(it.facts.holder or it.facts.pid)) for it in found)
    return [it if its is None else shares.judged(it, its) for it, its in with_shares]


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


def _together(cpus: CpuSet, cpusets: Collection[CpuSet]) -> CpuSet:
    """Return CPUs with all cpusets that overlap them, directly or through others."""
    wider = cpus.union(*(cpuset for cpuset in cpusets if not cpuset.isdisjoint(cpus)))
    return cpus if wider == cpus else _together(wider, cpusets)
