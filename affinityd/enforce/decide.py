"""What is to become of every process that uses a GPU. Pure: by what a scan found and a policy says.

Each goes one way: is it in a job, may it be pinned, where is it to run, and are its threads there?
Where it comes to a stop it is let alone, for a reason.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from affinityd.audit.model import KUBERNETES, AuditedProcess, Job, Scan
from affinityd.audit.remedies import Remedies
from affinityd.config.switch import OBSERVE, OFF, ON, SWITCHES
from affinityd.cpuset import CpuSet, format_list
from affinityd.enforce.exemptions import BY_JOB, BY_POLICY, ExemptError
from affinityd.enforce.jobs import Identify, ScanJobs
from affinityd.enforce.model import (
    ALLOCATION,
    CGROUP,
    DAEMON,
    DRIFTED,
    FITS,
    LEFT,
    NO_JOB,
    NO_POLICY,
    OPTED_OUT,
    ORPHAN,
    POLICY,
    Decision,
)
from affinityd.enforce.placement import JobHistory
from affinityd.enforce.policy.identity import paths
from affinityd.enforce.policy.model import Treatment
from affinityd.enforce.policy.policy import Policy
from affinityd.enforce.targets import Given, Targets
from affinityd.enforce.verdict import judged, only_observed, unsure
from affinityd.text import quote
from affinityd.topology.model import Topology

GIVEN = (
    "it asked for more CPUs than are near its GPUs, and was given CPUs {cpus}: an allocation with "
    "more near ones would help"
)


def decide(
    topology: Topology,
    scan: Scan,
    *,
    reserved: CpuSet,
    policy: Policy | None,
    identify: Identify,
    given: Given,
    history: JobHistory,
) -> list[Decision]:
    """Return what is to become of the processes of a scan, in its order.

    `policy` None: none could be read yet. `about` is asked of holders alone, and only of those in a
    job, or whose cgroup a rule may name. `history` remembers the jobs from scan to scan.
    """
    jobs, remedies = ScanJobs(scan.processes, policy, identify), Remedies(topology, scan)
    history.note(jobs.holders, scan.boot)
    plans = history.plans(topology, topology.online - reserved)
    targets = Targets(scan, jobs, remedies, plans, history)
    permissions = _Permissions(jobs, remedies, policy, identify)

    def decision(process: AuditedProcess) -> Decision:
        job: Job | None = None
        treatment: Treatment | None = None
        try:
            job = permissions.job(process)
            treatment = permissions.treatment(process)
            permissions.check(job, treatment, process.facts.uid)
            target = targets.of(process, job, treatment, given)
        except ExemptError as why:
            cause = ALLOCATION if why.reason == ALLOCATION else None
            found = Decision(process, LEFT, cause=cause, reason=why.reason, why=str(why))
        else:
            found = unsure(judged(process, target), treatment)
            found = permissions.with_allocation(found)
            found = only_observed(found, permissions.observed(job, treatment, process.facts.uid))
        return replace(found, job=job, treatment=treatment, pod=permissions.pod(job))

    return [decision(process) for process in scan.processes]


class _Permissions:
    """Which processes of one scan may be pinned, and how."""

    def __init__(
        self, jobs: ScanJobs, remedies: Remedies, policy: Policy | None, identify: Identify
    ) -> None:
        self._jobs = jobs
        self._remedies = remedies
        self._policy = policy
        self._identify = identify
        self._treatments: dict[int, Treatment] = {}  # by pid of the holder
        self._switch = cache(self._switch_of)

    def job(self, process: AuditedProcess) -> Job:
        """Return the job of a process. Raises ExemptError where it is in none that lives."""
        holder, job = self._jobs.holder(process), self._jobs.of(process)
        if process.is_daemon or holder.is_daemon:
            raise ExemptError(DAEMON)
        if (orphan := process.orphan or holder.orphan) is not None:
            remedy = self._remedies.end(holder)
            raise ExemptError(ORPHAN, orphan if remedy is None else f"{orphan}; {remedy}")
        if job is None:
            raise ExemptError(NO_JOB, cgroups=_shown(process.facts.cgroups))
        return job

    def treatment(self, process: AuditedProcess) -> Treatment:
        """Return what the policy says of a process: what it says of its holder.

        Raises ExemptError where there is no policy.
        """
        if self._policy is None:
            raise ExemptError(NO_POLICY)
        holder = self._jobs.holder(process).facts
        if holder.pid not in self._treatments:
            self._treatments[holder.pid] = self._policy.treatment(self._identify(holder))
        return self._treatments[holder.pid]

    def check(self, job: Job, treatment: Treatment, uid: int | None) -> None:
        """Raise ExemptError where the policy or the job wants no pin for a user's process."""
        if treatment.leave and not treatment.unread:
            raise ExemptError(POLICY, which=_source(treatment))
        word, pid = self._switch(job, uid)
        if word == OFF:
            raise ExemptError(OPTED_OUT, pid=pid)

    def observed(self, job: Job, treatment: Treatment, uid: int | None) -> str | None:
        """Return why a process is only observed, in a sentence; None: it may be pinned."""
        if treatment.observe and not treatment.unread:
            return BY_POLICY.format(which=_source(treatment))
        word, pid = self._switch(job, uid)
        return BY_JOB.format(pid=pid) if word == OBSERVE else None

    def with_allocation(self, decision: Decision) -> Decision:
        """Return the decision; a process that has far CPUs as it asked for so many is left."""
        process = decision.process
        why = None
        if process.cause == ALLOCATION and (process.is_given or decision.verdict == FITS):
            why = str(self._remedies.of(process))
        elif decision.verdict == DRIFTED:
            cpus = self._identify(self._jobs.holder(process).facts).given
            if cpus and all(mask <= cpus for mask in process.judged_masks):
                why = GIVEN.format(cpus=format_list(cpus))
        if why is None:
            return decision
        return replace(decision, verdict=LEFT, cause=ALLOCATION, reason=ALLOCATION, why=why)

    def pod(self, job: Job | None) -> str | None:
        """Return what Kubernetes calls a job, `NAMESPACE/POD`; None where that is not known."""
        if job is None or job.scheduler != KUBERNETES:
            return None
        identities = (self._identify(facts) for facts in self._jobs.holders.get(job, ()))
        return next((f"{it.namespace}/{it.pod}" for it in identities if it.pod is not None), None)

    def _switch_of(self, job: Job, uid: int | None) -> tuple[str, int | None]:
        """Return the least that AFFINITYD says in a holder of a job, and that holder's pid.

        In a cgroup that a rule names there may be several users: each one's own processes count.
        """
        holders = self._jobs.holders[job]
        its = (it for it in holders if job.scheduler != CGROUP or it.uid == uid)
        words = ((self._identify(facts).switch, facts.pid) for facts in its)
        return min(words, key=lambda it: SWITCHES.index(it[0]), default=(ON, None))


def _source(treatment: Treatment) -> str:
    """Return which part of the policy a treatment is from."""
    return "the top level" if treatment.rule is None else f"rule {treatment.rule}"


def _shown(cgroup_text: str) -> str:
    """Return the cgroups of a process for people, the root of a hierarchy aside."""
    named = [path for path in paths(cgroup_text) if path != "/"]
    return quote(", ".join(named)) if named else "roots of their hierarchies"
