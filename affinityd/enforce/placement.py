"""The jobs of a scan, and the CPUs on which each of its processes should run. Pure.

A job is a scheduler's, a container that none started, or a cgroup that a rule of the policy names.
Its GPUs are its ranks, and a plan divides its CPUs. Processes on one GPU share its rank's CPUs.
Overlapping cpusets are planned together, and each process gets the part in its own cpuset.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

from affinityd.audit.allocations import HeldGpus, Share, Shares
from affinityd.audit.model import AuditedProcess, GpuKey, Job, ProcessFacts
from affinityd.audit.remedies import Remedies
from affinityd.cpuset import CpuSet, format_list, several
from affinityd.enforce.model import (
    ALLOCATION,
    CGROUP,
    CONTAINER,
    NO_PLAN,
    UNKNOWN_CPUSET,
    UNKNOWN_PLACE,
    ExemptError,
    TargetCpus,
)
from affinityd.enforce.policy import GRANTED, Policy, Treatment
from affinityd.enforce.policy.identity import ProcessIdentity, paths
from affinityd.grouping import Recent
from affinityd.linux.processes import ancestors
from affinityd.planner.modes import MODES
from affinityd.topology import nearness

#: Returns the identity of a process, as far as a policy may ask.
Identify = Callable[[ProcessFacts], ProcessIdentity]


class ScanJobs:
    """The jobs of one scan."""

    def __init__(
        self, processes: Iterable[AuditedProcess], policy: Policy | None, identify: Identify
    ) -> None:
        self._processes = {process.facts.pid: process for process in processes}
        self._parents = {pid: process.facts.parent for pid, process in self._processes.items()}
        self._policy = policy
        self._identify = identify
        self._of_holder = {
            pid: self._named(process.facts)
            for pid, process in self._processes.items()
            if self.holder(process) is process
        }
        #: The holders of each job's GPUs: neither known daemons nor orphans.
        self.holders: defaultdict[Job, list[ProcessFacts]] = defaultdict(list)
        for pid, job in self._of_holder.items():
            process = self._processes[pid]
            if job is not None and not process.is_daemon and process.orphan is None:
                self.holders[job].append(process.facts)

    def holder(self, process: AuditedProcess) -> AuditedProcess:
        """Return the process that this one works for, where it was found; else itself."""
        return self._processes.get(process.facts.holder or process.facts.pid, process)

    def of(self, process: AuditedProcess) -> Job | None:
        """Return the job of a process: its holder's, unless it has left that; None: none."""
        facts, job = process.facts, self._of_holder[self.holder(process).facts.pid]
        if job is None:
            return None
        is_in = job.id in paths(facts.cgroups) if job.scheduler == CGROUP else _told(facts) == job
        return job if is_in else None

    def speakers(self, process: AuditedProcess, job: Job) -> Iterator[ProcessFacts]:
        """Yield the holders of a job's GPUs whose AFFINITYD counts for a process.

        That is the job's first, its own holder, and the holders among the ancestors of that. In a
        cgroup that a rule names there may be several users: of the first, its own user's counts.
        """
        uid = process.facts.uid if job.scheduler == CGROUP else None
        holders = {it.pid: it for it in self.holders[job] if uid is None or it.uid == uid}
        yield from sorted(holders.values(), key=lambda holder: (holder.start, holder.pid))[:1]
        above = ancestors(self.holder(process).facts.pid, self._parents)
        yield from (holders[pid] for pid in above if pid in holders)

    def gpus(self, facts: ProcessFacts) -> tuple[GpuKey, ...]:
        """Return the GPUs of a process, its own first, and of its descendants."""
        return (*facts.gpus, *sorted(self._below[facts.pid].difference(facts.gpus)))

    @cached_property
    def _below(self) -> Mapping[int, set[GpuKey]]:
        gpus: defaultdict[int, set[GpuKey]] = defaultdict(set)
        for pid in self._of_holder:
            for above in ancestors(pid, self._parents):
                gpus[above].update(self._processes[pid].facts.gpus)
        return gpus

    def _named(self, facts: ProcessFacts) -> Job | None:
        """Return the job of a holder; it is identified only where a rule may name its cgroup."""
        policy = self._policy
        job = _told(facts)
        if job is not None or policy is None or not policy.may_name(paths(facts.cgroups)):
            return job
        path = policy.names_cgroup(self._identify(facts))
        return None if path is None else Job(CGROUP, path)


def _told(facts: ProcessFacts) -> Job | None:
    """Return the job in the paths of a process's cgroups.

    A container's job is that of its place: any user may give its own cgroup another container's id.
    And in a container that may make cgroups a Slurm job may be any: it is not the node's.
    """
    job, container = facts.membership.job, facts.membership.container
    if job is not None and facts.membership.outside is not None:
        return replace(job, id=f"{job.id} in container {facts.membership.outside}")
    if job is not None or container is None:
        return job
    above = (path.partition(container) for path in paths(facts.cgroups))
    places = (f"{folders}{its}{rest.partition('/')[0]}" for folders, its, rest in above if its)
    return Job(CONTAINER, next(places, container))


#: The GPUs of each job from scan to scan. One that was held once stays a rank: the end of a
#: process must move no other.
JobHistory = Recent[Job, HeldGpus]

RESERVED = "all CPUs of its cpuset that are near {gpus}, {cpus}, are reserved: reserve fewer"
NOT_ITS_OWN = (
    "mode {mode} gives its job CPUs {cpus} on {gpus}, and none of them is both near and in the "
    "cpuset of this process, {cpuset}: use a mode in which ranks share CPUs, like node, "
    "or one cpuset for all processes of the job"
)


def note(history: JobHistory, jobs: ScanJobs, boot: float) -> None:
    """Note which GPUs the processes of each job hold; `boot`: when, seconds since boot."""
    history.begin(boot)
    for job, holders in jobs.holders.items():
        now = {(gpu, holder.cpuset) for holder in holders if holder.cpuset for gpu in holder.gpus}
        held = {gpu for gpu, _ in now}
        before = history.get(job) or frozenset()
        history[job] = frozenset(now).union(it for it in before if it[0] not in held)


@dataclass(frozen=True, eq=False)
class Places:
    """The target CPUs of the processes of one scan."""

    near: Mapping[GpuKey, CpuSet | None]  #: the near CPUs of every GPU; None: not known
    shares: Shares
    jobs: ScanJobs
    remedies: Remedies
    history: JobHistory
    given: Callable[[ProcessFacts], frozenset[CpuSet]]  #: returns affinityd's masks of a process

    def target(self, process: AuditedProcess, job: Job, treatment: Treatment) -> TargetCpus:
        """Return the standard of a process in a job. Raises ExemptError where it has no place."""
        facts, holder = process.facts, self.jobs.holder(process).facts
        gpus = self.jobs.gpus(facts)
        near, cpuset, shared = self._near(gpus), _cpuset(facts), _cpuset(holder)
        if cpuset.isdisjoint(near):
            kept_away = replace(process, cause=nearness.ALLOCATION)
            raise ExemptError(ALLOCATION, str(self.remedies.of(kept_away)))
        place = self._place(self._share(job, shared), treatment, gpus, cpuset)
        ours = self.given(holder) | self.given(facts)
        # Descendants inherit the mask of the holder's main thread, that of now or the first one;
        # a descendant's main thread may have a mask of its own.
        mains = (holder.first_mask, *(thread.mask for thread in holder.threads[:1]))
        usual = ours.union(mask for mask in mains if mask is not None)
        return TargetCpus(place, cpuset & self.shares.topology.online, usual, ours)

    @cached_property
    def _share(self) -> Callable[[Job, CpuSet], Share]:
        return cache(
            lambda job, cpuset: self.shares.of(
                cpuset, self.jobs.holders.get(job, ()), self.history.get(job) or frozenset()
            )
        )

    @cached_property
    def _place(self) -> Callable[[Share, Treatment, tuple[GpuKey, ...], CpuSet], CpuSet]:
        return cache(self._place_of)

    def _place_of(
        self, share: Share, treatment: Treatment, gpus: tuple[GpuKey, ...], cpuset: CpuSet
    ) -> CpuSet:
        """Return the CPUs of a process with these GPUs and this cpuset, one at least.

        Raises ExemptError if there is no plan, or no near CPU in it for this process.
        """
        near, mode = self._near(gpus), treatment.options.mode
        wanted = cpuset if MODES[mode].everywhere else cpuset & near
        names = several("GPU", (index for _, index in gpus))
        if wanted.isdisjoint(self.shares.whole):
            cpus = format_list(near & cpuset)
            raise ExemptError(NO_PLAN, RESERVED.format(gpus=names, cpus=cpus))
        asked = treatment.cpus if isinstance(treatment.cpus, int) else None
        if treatment.cpus == GRANTED:
            asked = share.asked
        ranks = self.shares.ranks(share, replace(treatment.options, cpus=asked))
        if isinstance(ranks, str):
            raise ExemptError(NO_PLAN, f"mode {mode}: {ranks}")
        parts = [rank.cpus for rank in ranks if rank.gpu.key in gpus]
        place = frozenset[int]().union(*(part & cpuset for part in parts if part & wanted))
        if not place:
            cpus, allowed = map(format_list, (frozenset[int]().union(*parts), cpuset))
            why = NOT_ITS_OWN.format(gpus=names, cpus=cpus, mode=mode, cpuset=allowed)
            raise ExemptError(NO_PLAN, why)
        return place

    def _near(self, gpus: tuple[GpuKey, ...]) -> CpuSet:
        near = {gpu: self.near.get(gpu) for gpu in gpus}
        places = [cpus for cpus in near.values() if cpus is not None]
        if len(places) < len(near):
            lost = several("GPU", (index for (_, index), cpus in near.items() if cpus is None))
            raise ExemptError(UNKNOWN_PLACE, gpus=lost)
        return frozenset[int]().union(*places)


def _cpuset(facts: ProcessFacts) -> CpuSet:
    if facts.cpuset is None:
        raise ExemptError(UNKNOWN_CPUSET, pid=facts.pid)
    return facts.cpuset
