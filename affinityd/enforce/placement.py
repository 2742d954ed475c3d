"""Where the processes of a job are to run: its GPUs are its ranks, and a plan divides its CPUs.

Processes on one GPU share what its rank has. Cpusets that overlap are planned together, and each
process has what of that is in its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from affinityd.audit.allocations import granted_number
from affinityd.audit.model import GpuKey, Job, ProcessFacts
from affinityd.cpuset import CpuSet, format_list, several
from affinityd.enforce.policy.model import NOTHING, Treatment
from affinityd.errors import UnsatisfiableError
from affinityd.planner.model import Demand, Options
from affinityd.planner.modes import MODES
from affinityd.planner.planner import plan
from affinityd.recent import Recent
from affinityd.request.asked_cpus import asked_each
from affinityd.topology.model import Topology
from affinityd.topology.nearness import vicinity

#: A GPU, and the cpuset of a process that holds it.
GpuInCpuset = tuple[GpuKey, CpuSet]

MOST_KEPT = 1024  #: plans and places: a user may make up as many as there are

RESERVED = "all CPUs near {gpus} that its cgroup lets it use, {cpus}, are reserved: reserve fewer"
NOT_ITS_OWN = (
    "of the CPUs {cpus} that mode {mode} gives its job on {gpus}, none is near and in its own "
    "cpuset, {cpuset}: a mode whose ranks share, like node, or one cpuset for all would do"
)


@dataclass(frozen=True)
class SharedCpus:
    """CPUs that ranks of a job divide between them."""

    cpus: CpuSet  #: of cpusets that overlap: those that are online, and not reserved
    ranks: tuple[GpuKey, ...]  #: by their numbers
    granted: int | None = None  #: how many of the CPUs the job asked for; None: not known


@dataclass(frozen=True)
class JobGpus:
    """The GPUs that a job's processes hold, and have held."""

    now: frozenset[GpuInCpuset] = frozenset()
    before: frozenset[GpuInCpuset] = frozenset()  #: of GPUs that no process holds any more
    holders: tuple[ProcessFacts, ...] = ()  #: those of `now`


class JobPlans:
    """Where processes are to run, on one machine; what was asked before is remembered."""

    def __init__(self, topology: Topology, whole: CpuSet) -> None:
        """Take the machine, and those of its CPUs that are online and not reserved."""
        self.topology = topology
        self.whole = whole
        self._gpus = {gpu.key: gpu for gpu in topology.gpus}
        self._plan = lru_cache(MOST_KEPT)(self._planned)
        self._place = lru_cache(MOST_KEPT)(self._found)

    def of(
        self, shared: SharedCpus, treatment: Treatment, gpus: tuple[GpuKey, ...], cpuset: CpuSet
    ) -> CpuSet:
        """Return the CPUs of a process with these GPUs and this cpuset: one at least.

        `cpuset` has some near the GPUs, whose places are known. Raises UnsatisfiableError where
        there is no plan, or nothing near in it for this process.
        """
        place = self._place(shared, treatment, gpus, cpuset)
        if isinstance(place, str):
            raise UnsatisfiableError(place)
        return place

    def _found(
        self, shared: SharedCpus, treatment: Treatment, gpus: tuple[GpuKey, ...], cpuset: CpuSet
    ) -> CpuSet | str:
        """Return the same, or why there is no place."""
        near = vicinity(self.topology, [self._gpus[gpu] for gpu in gpus]).cpus
        names = several("GPU", (index for _, index in gpus))
        wanted = cpuset if MODES[treatment.mode].everywhere else cpuset & near
        if wanted.isdisjoint(self.whole):
            return RESERVED.format(gpus=names, cpus=format_list(near & cpuset))
        plan_of = self._plan(shared, _options(treatment, self._asked(shared, treatment.cpus)))
        if isinstance(plan_of, str):
            return plan_of
        planned = [plan_of[gpu] for gpu in gpus if gpu in plan_of]
        place = frozenset[int]().union(*(it & cpuset for it in planned if it & wanted))
        cpus = format_list(frozenset[int]().union(*planned))
        return place or NOT_ITS_OWN.format(
            gpus=names, cpus=cpus, mode=treatment.mode, cpuset=format_list(cpuset)
        )

    def _planned(self, shared: SharedCpus, options: Options) -> Mapping[GpuKey, CpuSet] | str:
        """Return the CPUs of every rank, or why there is no plan."""
        gpus = tuple(self._gpus[gpu] for gpu in shared.ranks if gpu in self._gpus)
        try:
            made = plan(self.topology, Demand(gpus, shared.cpus, self.whole, options))
        except UnsatisfiableError as error:
            return f"mode {options.mode}: {error}"
        return {rank.gpu.key: rank.cpus for rank in made.ranks}

    def _asked(self, shared: SharedCpus, said: int | str) -> int | None:
        """Return how many CPUs each rank asked for; None: not known, or it does not matter."""
        if isinstance(said, int):
            return said
        if said == NOTHING or shared.granted is None or not shared.ranks:
            return None
        return asked_each(self.topology, shared.granted, len(shared.ranks), shared.cpus, self.whole)


class JobHistory:
    """What is known of jobs from scan to scan: the GPUs that each has held, and its plans.

    A GPU that was held once stays a rank: the end of one process is to move no other.
    """

    def __init__(self) -> None:
        """Know of none."""
        self._jobs: Recent[Job, JobGpus] = Recent()
        self._plans: JobPlans | None = None

    def note(self, holders: Mapping[Job, Collection[ProcessFacts]], boot: float) -> None:
        """Note which processes hold the GPUs of each job; `boot`: when, seconds since boot."""
        self._jobs.begin(boot)
        for job, its in holders.items():
            now = frozenset(
                (gpu, facts.cpuset) for facts in its if facts.cpuset for gpu in facts.gpus
            )
            held = {gpu for gpu, _ in now}
            had = self._jobs.get(job) or JobGpus()
            before = frozenset(it for it in had.now | had.before if it[0] not in held)
            self._jobs[job] = JobGpus(now, before, tuple(its))

    def plans(self, topology: Topology, whole: CpuSet) -> JobPlans:
        """Return the plans of a machine; one that was read anew is another."""
        known = self._plans
        if known is None or known.topology is not topology:
            self._plans = known = JobPlans(topology, whole)
        return known

    def shared_cpus(self, job: Job, cpuset: CpuSet, whole: CpuSet) -> SharedCpus:
        """Return what a process of a job that has been noted divides with others, by its cpuset."""
        its = self._jobs.get(job) or JobGpus()
        cpus = _together(cpuset & whole, {cpuset & whole for _, cpuset in its.now})
        ranks = {gpu for gpu, cpuset in its.now | its.before if not cpuset.isdisjoint(cpus)}
        sharing = [it for it in its.holders if it.cpuset and not it.cpuset.isdisjoint(cpus)]
        return SharedCpus(cpus, tuple(sorted(ranks)), granted_number(sharing, cpus))


def _together(cpus: CpuSet, cpusets: Collection[CpuSet]) -> CpuSet:
    """Return CPUs with all cpusets that they overlap, and that those overlap."""
    wider = cpus.union(*(cpuset for cpuset in cpusets if not cpuset.isdisjoint(cpus)))
    return cpus if wider == cpus else _together(wider, cpusets)


def _options(treatment: Treatment, asked: int | None) -> Options:
    return replace(
        treatment.site,
        mode=treatment.mode,
        scope=treatment.scope,
        share=treatment.share,
        min_physical_cores=treatment.min_physical_cores,
        cpus=asked,
    )
