"""Decides about every process that uses a GPU, by a scan and a policy. Pure.

The steps: is it in a job, may it be pinned, where should it run, and are its threads there? If a
step fails, the process is left alone, for a reason.
"""

from __future__ import annotations

from dataclasses import replace

from affinityd.audit.allocations import Shares
from affinityd.audit.facts.job import KUBERNETES, Job
from affinityd.audit.facts.process import ProcessFacts
from affinityd.audit.model import AuditedProcess, Scan
from affinityd.audit.remedies import Remedies
from affinityd.config import OBSERVE, OFF, ON, SWITCHES
from affinityd.cpuset import CpuSet, format_list
from affinityd.enforce.jobs import Identify, ScanJobs
from affinityd.enforce.model import (
    ALLOCATION,
    DAEMON,
    DRIFTED,
    FITS,
    LEFT,
    NO_JOB,
    NO_POLICY,
    OPTED_OUT,
    ORPHAN,
    POLICY,
    UNKNOWN_CPUSET,
    Decision,
    TargetCpus,
)
from affinityd.enforce.placement import Given, JobHistory, Places, note
from affinityd.enforce.policy.identity import paths
from affinityd.enforce.policy.model import Treatment
from affinityd.enforce.policy.policy import Policy
from affinityd.enforce.verdict import (
    BY_JOB,
    BY_MASKS,
    BY_POLICY,
    GIVEN,
    MAY_LEAVE,
    ExemptError,
    check_purpose,
    judged,
)
from affinityd.text import quote
from affinityd.topology.model import Topology


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
    """Return the decisions about the processes of a scan, in its order.

    `policy` None: none could be read yet. `identify` is called only for holders, and only for those
    in a job, or whose cgroup a rule may name. `history` remembers the jobs from scan to scan.
    """
    jobs, remedies = ScanJobs(scan.processes, policy, identify), Remedies(topology, scan)
    note(history, jobs, scan.boot)
    shares = Shares(topology, reserved)
    places = Places(scan, shares, jobs, remedies, history=history, given=given)
    deciding = _Deciding(jobs, places, remedies, policy, identify)
    return [deciding.decision(process) for process in scan.processes]


class _Deciding:
    """The decisions about the processes of one scan."""

    def __init__(
        self,
        jobs: ScanJobs,
        places: Places,
        remedies: Remedies,
        policy: Policy | None,
        identify: Identify,
    ) -> None:
        self._jobs = jobs
        self._places = places
        self._remedies = remedies
        self._policy = policy
        self._identify = identify
        self._treatments: dict[int, Treatment] = {}  # by pid of the holder

    def decision(self, process: AuditedProcess) -> Decision:
        """Return the decision about a process."""
        found = Decision(process, LEFT)
        try:
            job = self._job(process)
            found = replace(found, job=job, pod=self._pod(job))
            holder = self._jobs.holder(process).facts
            treatment = self._treatment(holder)
            found = replace(found, treatment=treatment)
            word, pid = self._switch(process, job)
            _check_wanted(treatment, word, pid)
            target = self._places.target(process, job, treatment)
            found = judged(found, target)
            self._check_judged(found, target, treatment, holder)
        except ExemptError as why:
            cause = ALLOCATION if why.reason == ALLOCATION else found.cause
            return replace(found, verdict=LEFT, cause=cause, reason=why.reason, why=str(why))
        if found.verdict == DRIFTED and treatment.observe and not treatment.unread:
            return _observed(found, BY_POLICY.format(which=_source(treatment)))
        if found.verdict == DRIFTED and word == OBSERVE:
            return _observed(found, BY_JOB.format(pid=pid))
        return found

    def _job(self, process: AuditedProcess) -> Job:
        """Return the job of a process. Raises ExemptError where it is in none that lives."""
        holder, job = self._jobs.holder(process), self._jobs.of(process)
        if process.is_daemon or holder.is_daemon:
            raise ExemptError(DAEMON)
        if (orphan := process.orphan or holder.orphan) is not None:
            remedy = self._remedies.end(holder)
            raise ExemptError(ORPHAN, orphan if remedy is None else f"{orphan}; {remedy}")
        if job is None:
            named = [path for path in paths(process.facts.cgroups) if path != "/"]
            cgroups = quote(", ".join(named)) if named else "roots of their hierarchies"
            raise ExemptError(NO_JOB, cgroups=cgroups)
        return job

    def _treatment(self, holder: ProcessFacts) -> Treatment:
        """Return the policy's treatment of a holder and of its descendants.

        Raises ExemptError where there is no policy.
        """
        if self._policy is None:
            raise ExemptError(NO_POLICY)
        if holder.pid not in self._treatments:
            self._treatments[holder.pid] = self._policy.treatment(self._identify(holder))
        return self._treatments[holder.pid]

    def _check_judged(
        self, found: Decision, target: TargetCpus, treatment: Treatment, holder: ProcessFacts
    ) -> None:
        """Raise ExemptError if a process is elsewhere on purpose, or by request.

        Or if a drifted one must not be pinned.
        """
        process, fits = found.process, found.verdict == FITS
        if fits and not process.is_given:
            check_purpose(process, target)
        if process.cause == ALLOCATION and (fits or process.is_given):
            raise ExemptError(ALLOCATION, str(self._remedies.of(process)))
        if fits:
            return
        # One that was never seen with all of its cpuset: its mask may be its allocation.
        if not process.facts.is_confined and all(it < target.cpuset for it in target.usual):
            raise ExemptError(UNKNOWN_CPUSET, BY_MASKS)
        if treatment.unread:
            unread = ", ".join(treatment.unread)
            raise ExemptError(POLICY, MAY_LEAVE.format(rule=treatment.rule, unread=unread))
        cpus = self._identify(holder).given
        if cpus and all(mask <= cpus for mask in process.judged_masks):
            raise ExemptError(ALLOCATION, GIVEN.format(cpus=format_list(cpus)))

    def _pod(self, job: Job) -> str | None:
        """Return Kubernetes' name of a job, `NAMESPACE/POD`; None: unknown."""
        if job.scheduler != KUBERNETES:
            return None
        identities = (self._identify(facts) for facts in self._jobs.holders.get(job, ()))
        return next((f"{it.namespace}/{it.pod}" for it in identities if it.pod is not None), None)

    def _switch(self, process: AuditedProcess, job: Job) -> tuple[str, int | None]:
        """Return the least AFFINITYD that counts for a process, and the pid of its holder."""
        speakers = self._jobs.speakers(process, job)
        words = ((self._identify(facts).switch, facts.pid) for facts in speakers)
        return min(words, key=lambda it: SWITCHES.index(it[0]), default=(ON, None))


def _check_wanted(treatment: Treatment, word: str, pid: int | None) -> None:
    """Raise ExemptError where the policy, or the job by the process `pid`, wants no pin."""
    if treatment.leave and not treatment.unread:
        raise ExemptError(POLICY, which=_source(treatment))
    if word == OFF:
        raise ExemptError(OPTED_OUT, pid=pid)


def _observed(found: Decision, why: str) -> Decision:
    return replace(found, is_observed=True, why=f"{found.why}; it is not pinned: {why}")


def _source(treatment: Treatment) -> str:
    """Return which part of the policy a treatment is from."""
    return "the top level" if treatment.rule is None else f"rule {treatment.rule}"
