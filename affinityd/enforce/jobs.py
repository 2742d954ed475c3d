"""The jobs of a scan: the job of each process, and the holders of each job's GPUs. Pure.

A job is a scheduler's, a container that none started, or a cgroup that a rule of the policy names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property

from affinityd.audit.facts.holding import GpuKey
from affinityd.audit.facts.job import Job
from affinityd.audit.facts.process import ProcessFacts
from affinityd.audit.model import AuditedProcess
from affinityd.enforce.model import CGROUP, CONTAINER
from affinityd.enforce.policy.identity import ProcessIdentity, paths
from affinityd.enforce.policy.policy import Policy

#: Returns the identity of a process, as far as a policy may ask.
Identify = Callable[[ProcessFacts], ProcessIdentity]


class ScanJobs:
    """The jobs of one scan."""

    def __init__(
        self, processes: Iterable[AuditedProcess], policy: Policy | None, identify: Identify
    ) -> None:
        """Take the processes; `policy` None: none could be read yet."""
        self._processes = {it.facts.pid: it for it in processes}
        self._policy = policy
        self._identify = identify
        self._of_holder = {
            pid: self._named(process.facts)
            for pid, process in self._processes.items()
            if self.holder(process) is process
        }
        self._of_user = cache(self._holders_of)

    def holder(self, process: AuditedProcess) -> AuditedProcess:
        """Return the process that this one works for, where it was found; else itself."""
        return self._processes.get(process.facts.holder or process.facts.pid, process)

    def of(self, process: AuditedProcess) -> Job | None:
        """Return the job of a process: its holder's, unless it has left that; None: none."""
        job = self._of_holder[self.holder(process).facts.pid]
        return job if job is not None and _is_of(process.facts, job) else None

    @cached_property
    def holders(self) -> Mapping[Job, tuple[ProcessFacts, ...]]:
        """The holders of each job's GPUs: neither known daemons nor orphans."""
        found: defaultdict[Job, tuple[ProcessFacts, ...]] = defaultdict(tuple)
        for pid, job in self._of_holder.items():
            process = self._processes[pid]
            if job is not None and not process.is_daemon and process.orphan is None:
                found[job] += (process.facts,)
        return found

    def speakers(self, process: AuditedProcess, job: Job) -> Iterator[ProcessFacts]:
        """Yield the holders of a job's GPUs whose AFFINITYD counts for a process.

        That is the job's first, its own holder, and the holders among the ancestors of that. In a
        cgroup that a rule names there may be several users: of the first, its own user's counts.
        """
        uid = process.facts.uid if job.scheduler == CGROUP else None
        its = self._of_user(job, uid)
        yield from list(its.values())[:1]
        above: set[int] = set()  # parents may seem a circle
        pid = self.holder(process).facts.pid
        while pid in self._processes and pid not in above:
            above.add(pid)
            if pid in its:
                yield its[pid]
            pid = self._processes[pid].facts.parent

    def gpus(self, facts: ProcessFacts) -> tuple[GpuKey, ...]:
        """Return the GPUs of a process, its own first, and of its descendants."""
        return (*facts.gpus, *sorted(self._below[facts.pid].difference(facts.gpus)))

    @cached_property
    def _below(self) -> Mapping[int, set[GpuKey]]:
        """The GPUs of each process and of its descendants, by its pid."""
        gpus = {pid: {*process.facts.gpus} for pid, process in self._processes.items()}
        for pid in self._of_holder:
            facts = self._processes[pid].facts
            parent = facts.parent
            # A process that has them all has added them above. Parents may seem a circle.
            while parent in gpus and not gpus[parent].issuperset(facts.gpus):
                gpus[parent].update(facts.gpus)
                parent = self._processes[parent].facts.parent
        return gpus

    def _holders_of(self, job: Job, uid: int | None) -> Mapping[int, ProcessFacts]:
        """Return a job's holders by pid, the first one that started first; None: of all users."""
        its = (it for it in self.holders[job] if uid is None or it.uid == uid)
        return {it.pid: it for it in sorted(its, key=lambda it: (it.start, it.pid))}

    def _named(self, facts: ProcessFacts) -> Job | None:
        """Return the job of a holder; it is identified only where a rule may name its cgroup."""
        policy = self._policy
        told = _told(facts)
        if told is not None or policy is None or not policy.may_name(paths(facts.cgroups)):
            return told
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


def _is_of(facts: ProcessFacts, job: Job) -> bool:
    return job.id in paths(facts.cgroups) if job.scheduler == CGROUP else _told(facts) == job
