"""What is to become of every process that uses a GPU. Pure: by what a scan found and a policy says.

Each goes one way: is it in a job, may it be pinned, where is it to run, and are its threads there?
Where it comes to a stop it is let alone, for a reason.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from affinityd.audit.model import Audited, Job, Scan
from affinityd.audit.remedies import Remedies
from affinityd.cpuset import CpuSet
from affinityd.enforce.jobs import Asking, Jobs
from affinityd.enforce.let_alone import UNREAD, WHY, LetAloneError
from affinityd.enforce.model import (
    DAEMON,
    LEFT,
    NO_JOB,
    NO_POLICY,
    OPTED_OUT,
    ORPHAN,
    POLICY,
    Decision,
    Treatment,
)
from affinityd.enforce.places import Roll
from affinityd.enforce.policy import Policy
from affinityd.enforce.standards import Standards, Usual
from affinityd.enforce.verdict import judged
from affinityd.topology import Topology


def decide(
    topology: Topology,
    scan: Scan,
    *,
    reserved: CpuSet,
    policy: Policy | None,
    about: Asking,
    usual: Usual,
    roll: Roll,
) -> list[Decision]:
    """Return what is to become of the processes of a scan, in its order.

    `policy` None: none could be read yet. `about` is asked of holders alone, and only of those in a
    job, or whose cgroup a rule may name. `roll` remembers the jobs from scan to scan.
    """
    jobs, remedies = Jobs(scan.processes, policy, about), Remedies(topology, scan)
    roll.note(jobs.holders, scan.boot)
    places = roll.places(topology, topology.online - reserved)
    standards = Standards(scan, jobs, remedies, places, roll)
    consents = _Consents(jobs, remedies, policy, about)

    def decided(process: Audited) -> Decision:
        job: Job | None = None
        treatment: Treatment | None = None
        try:
            job = consents.job(process)
            treatment = consents.treatment(process)
            consents.ask(job, treatment)
            standard = standards.of(process, job, treatment, usual)
        except LetAloneError as why:
            return Decision(process, LEFT, job, treatment, reason=why.reason, why=str(why))
        return replace(judged(process, standard), job=job, treatment=treatment)

    return [decided(process) for process in scan.processes]


class _Consents:
    """Who may be pinned, and how, in one scan."""

    def __init__(
        self, jobs: Jobs, remedies: Remedies, policy: Policy | None, about: Asking
    ) -> None:
        self._jobs = jobs
        self._remedies = remedies
        self._policy = policy
        self._about = about
        self._off = cache(self._who_is_off)

    def job(self, process: Audited) -> Job:
        """Return the job of a process. Raises LetAloneError where it is in none."""
        holder, job = self._jobs.holder(process), self._jobs.of(process)
        if process.is_daemon or holder.is_daemon:
            raise LetAloneError(DAEMON)
        if job is None:
            raise LetAloneError(NO_JOB, pid=process.facts.pid)
        return job

    def treatment(self, process: Audited) -> Treatment:
        """Return what the policy says of a process in a job.

        Raises LetAloneError where there is none to say it, or the job is over.
        """
        holder = self._jobs.holder(process)
        orphan = process.orphan or holder.orphan
        if orphan is not None:
            remedy = self._remedies.of(holder)
            raise LetAloneError(ORPHAN, orphan if remedy is None else f"{orphan}; {remedy}")
        if self._policy is None:
            raise LetAloneError(NO_POLICY)
        return self._policy.treatment(self._about(holder.facts))

    def ask(self, job: Job, treatment: Treatment) -> None:
        """Raise LetAloneError where somebody wants no pin."""
        rule = treatment.rule
        if treatment.unread:
            unread = ", ".join(treatment.unread)
            raise LetAloneError(POLICY, WHY[UNREAD].format(rule=rule, unread=unread))
        if treatment.leave:
            raise LetAloneError(POLICY, which="the top level" if rule is None else f"rule {rule}")
        off = self._off(job)
        if off is not None:
            raise LetAloneError(OPTED_OUT, pid=off)

    def _who_is_off(self, job: Job) -> int | None:
        """Return the pid of a holder of a job in whose environment somebody opted out, if any."""
        holders = self._jobs.holders[job]
        return next((facts.pid for facts in holders if self._about(facts).is_off), None)
