"""Decides about every process that uses a GPU, by a scan and a policy. Pure.

The steps: is it in a job, may it be pinned, where should it run, and are its threads there? If a
step fails, the process is left alone, for a reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from affinityd.audit.allocations import Shares
from affinityd.audit.gather import TICKS
from affinityd.audit.model import KUBERNETES, AuditedProcess, Job, ProcessFacts, Scan
from affinityd.audit.remedies import Remedies
from affinityd.config import OBSERVE, OFF, SWITCHES
from affinityd.cpuset import CpuSet, format_list
from affinityd.enforce.model import (
    ALLOCATION,
    DAEMON,
    DRIFTED,
    FITS,
    GIVEN_UP,
    LEFT,
    NO_JOB,
    NO_POLICY,
    ON_PURPOSE,
    OPTED_OUT,
    ORPHAN,
    POLICY,
    SHARE,
    UNKNOWN_CPUSET,
    WAITING,
    YOUNG,
    Decision,
    ExemptError,
    PinAttempt,
    TargetCpus,
)
from affinityd.enforce.placement import Identify, JobHistory, Places, ScanJobs, note
from affinityd.enforce.policy import Policy, Treatment
from affinityd.enforce.policy.identity import ProcessIdentity, paths
from affinityd.grouping import Recent
from affinityd.text import count, quote
from affinityd.topology.model import Topology
from affinityd.topology.nearness import MASK, UNPINNED

#: For reasons not to pin a drifted process.
BY_MASKS = (
    "Slurm confines tasks only by masks here (task/affinity without task/cgroup's "
    "ConstrainCores=yes), so the CPUs of its job are not known: set ConstrainCores=yes in "
    "cgroup.conf, or pin with the TaskProlog"
)
MAY_LEAVE = (
    "rule {rule} of the policy may leave it alone or observe it, but a key of the rule cannot "
    "be read here ({unread}): give the daemon CAP_SYS_PTRACE and "
    "CAP_DAC_READ_SEARCH for environments, /var/log/pods for namespaces and pods; "
    "or use other keys"
)
GIVEN = (
    "it asked for more CPUs than are near its GPUs, and was given CPUs {cpus}: give its job more "
    "near CPUs"
)

#: For processes that fit otherwise.
CONFINED = "it was pinned to {mask} on purpose; taskset -apc {cpuset} {pid} resets it"
THREADS = (
    "{threads} of it (first {first}) may run on CPUs {cpus}: they were pinned on "
    "purpose; affinityd pin --force moves them"
)

#: How it has drifted, and why it is only observed then.
ELSEWHERE = "it may run on CPUs {masks}, and should run on {cpus}"
BY_JOB = "AFFINITYD=observe is in the environment of process {pid} of its job"
UNREAD = (
    "the environment of process {pid} of its job cannot be read, and may have AFFINITYD=off: give "
    "the daemon CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
)
BY_POLICY = "{which} of the policy says observe"


def decide(
    topology: Topology,
    scan: Scan,
    *,
    reserved: CpuSet,
    policy: Policy | None,
    identify: Identify,
    history: JobHistory,
    backoff: Backoff,
) -> list[Decision]:
    """Return the decisions about the processes of a scan, in its order.

    `policy` None: none could be read yet. `identify` is called only for holders, and only for those
    in a job, or whose cgroup a rule may name. `history` and `backoff` remember the jobs and pins
    from scan to scan.
    """
    jobs, remedies = ScanJobs(scan.processes, policy, identify), Remedies(topology, scan)
    note(history, jobs, scan.boot)
    backoff.begin(scan.boot)
    places = Places(scan.near, Shares(topology, reserved), jobs, remedies, history, backoff.given)
    deciding = _Deciding(places, policy, identify)
    return [backoff.after_waiting(deciding.decision(process)) for process in scan.processes]


class _Deciding:
    def __init__(self, places: Places, policy: Policy | None, identify: Identify) -> None:
        self._places, self._jobs, self._remedies = places, places.jobs, places.remedies
        self._policy = policy
        self._identify = identify
        self._treatments: dict[int, Treatment] = {}  # by pid of the holder

    def decision(self, process: AuditedProcess) -> Decision:
        """Return the decision about a process."""
        decision = Decision(process, LEFT)
        try:
            job = self._job(process)
            decision = replace(decision, job=job, pod=self._pod(job))
            holder = self._jobs.holder(process).facts
            treatment = self._treatment(holder)
            decision = replace(decision, treatment=treatment)
            speaker, pid = self._speaker(process, job, treatment)
            target = self._places.target(process, job, treatment)
            decision = _judged(decision, target)
            self._check_judged(decision, target, treatment, holder)
        except ExemptError as why:
            cause = ALLOCATION if why.reason == ALLOCATION else decision.cause
            return replace(decision, verdict=LEFT, cause=cause, reason=why.reason, why=str(why))
        if decision.verdict == FITS:
            return decision
        if treatment.observe and not treatment.unread:
            because = BY_POLICY.format(which=treatment.source)
        elif speaker is not None and speaker.switch == OBSERVE:
            is_unread = "environment" in speaker.unread
            because = (UNREAD if is_unread else BY_JOB).format(pid=pid)
        else:
            return decision
        why_not = f"{decision.why}; it is not pinned: {because}"
        return replace(decision, is_observed=True, why=why_not)

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

    def _pod(self, job: Job) -> str | None:
        """Return Kubernetes' name of a job, `NAMESPACE/POD`; None: unknown."""
        if job.scheduler != KUBERNETES:
            return None
        identities = (self._identify(facts) for facts in self._jobs.holders[job])
        return next((f"{it.namespace}/{it.pod}" for it in identities if it.pod is not None), None)

    def _treatment(self, holder: ProcessFacts) -> Treatment:
        """Return the policy's treatment of a holder and of its descendants.

        Raises ExemptError where there is no policy.
        """
        if self._policy is None:
            raise ExemptError(NO_POLICY)
        if holder.pid not in self._treatments:
            self._treatments[holder.pid] = self._policy.treatment(self._identify(holder))
        return self._treatments[holder.pid]

    def _speaker(
        self, process: AuditedProcess, job: Job, treatment: Treatment
    ) -> tuple[ProcessIdentity | None, int | None]:
        """Return the holder whose AFFINITYD counts for a process, the least one, and its pid.

        Raises ExemptError where the policy, or this holder, wants no pin.
        """
        if treatment.leave and not treatment.unread:
            raise ExemptError(POLICY, which=treatment.source)
        speakers = [(self._identify(it), it.pid) for it in self._jobs.speakers(process, job)]
        if not speakers:
            return None, None
        speaker, pid = min(speakers, key=lambda it: SWITCHES.index(it[0].switch))
        if speaker.switch == OFF:
            raise ExemptError(OPTED_OUT, pid=pid)
        return speaker, pid

    def _check_judged(
        self, decision: Decision, target: TargetCpus, treatment: Treatment, holder: ProcessFacts
    ) -> None:
        """Raise ExemptError if a process is elsewhere on purpose, or by request.

        Or if a drifted one must not be pinned.
        """
        process, facts, fits = decision.process, decision.process.facts, decision.verdict == FITS
        if fits and not process.is_given:
            away = target.threads(facts, ON_PURPOSE)
            if away[:1] == list(facts.threads[:1]):
                mask, cpuset = format_list(away[0].mask), format_list(target.cpuset)
                why = CONFINED.format(mask=mask, cpuset=cpuset, pid=facts.pid)
                raise ExemptError(ON_PURPOSE, why)
            if away and process.is_mismatch:
                threads = count(len(away), "thread")
                cpus = format_list(frozenset().union(*(thread.mask for thread in away)))
                why = THREADS.format(threads=threads, first=away[0].tid, cpus=cpus)
                raise ExemptError(ON_PURPOSE, why)
        if process.cause == ALLOCATION and (fits or process.is_given):
            raise ExemptError(ALLOCATION, str(self._remedies.of(process)))
        if fits:
            return
        # One that was never seen with all of its cpuset: its mask may be its allocation.
        if not facts.is_confined and all(mask < target.cpuset for mask in target.usual):
            raise ExemptError(UNKNOWN_CPUSET, BY_MASKS)
        if treatment.unread:
            unread = ", ".join(treatment.unread)
            raise ExemptError(POLICY, MAY_LEAVE.format(rule=treatment.rule, unread=unread))
        given = self._identify(holder).given
        if given and all(mask <= given for mask in process.judged):
            raise ExemptError(ALLOCATION, GIVEN.format(cpus=format_list(given)))


def _judged(decision: Decision, target: TargetCpus) -> Decision:
    """Return the decision about a process that has a place: it fits, or has drifted."""
    facts = decision.process.facts
    drifted, on_purpose = (target.threads(facts, it) for it in (DRIFTED, ON_PURPOSE))
    decision = replace(
        decision, verdict=FITS, target=target, drifted=len(drifted), on_purpose=len(on_purpose)
    )
    if not drifted:
        return decision
    # Where the audit finds no mismatch, it runs near its GPU, on CPUs of others.
    # ALLOCATION is judged by its own GPU, if a descendant's GPU has near CPUs.
    cause = {None: SHARE, UNPINNED: UNPINNED}.get(decision.process.cause, MASK)
    masks = format_list(frozenset().union(*(thread.mask for thread in drifted)))
    why = ELSEWHERE.format(masks=masks, cpus=format_list(target.cpus))
    return replace(decision, verdict=DRIFTED, cause=cause, why=why)


MOST_GIVEN = 16  #: latest masks of affinityd's that are kept for each process

SO_FAR = "it started {age:.0f} s ago, and is left alone for its first {grace:.0f} s"
RESET = "its masks were reset {times} in a row after a pin, by itself or by its scheduler: "
AGAIN = "its pin was refused {times} in a row ({refusal}): "
LATER = "the next pin is in {rest:.0f} s"
END = "it is not pinned again until its cpuset changes"
ENOUGH = END + (
    "; check what it sets (OMP_PROC_BIND, GOMP_CPU_AFFINITY, KMP_AFFINITY, numactl "
    "in its script), or leave it alone by a rule of the policy"
)

GRACE = 10.0  #: seconds from a process's start: it may yet pin itself
WAITS = (0, 0, 30, 60, 120, 240)  #: seconds from a pin to the next, by pins in a row
REST = 3600.0  #: seconds without a reset, and the next is the first in a row


@dataclass(frozen=True)
class PinRecord:
    """The history of one process."""

    given: tuple[CpuSet, ...] = ()  #: affinityd's masks, also as the kernel narrowed them
    asked: CpuSet | None = None  #: its last requested mask
    pins: int = 0
    last_pin: float | None = None  #: or the last try, which was refused
    refusal: str | None = None  #: why the last try was refused, of some threads at least
    cpuset: CpuSet | None = None  #: its own at the last pin
    resets: int = 0
    last_drift: float = 0.0  #: when it was found elsewhere last
    in_a_row: int = 0  #: pins and refusals with no long rest between, and under one cpuset
    is_reset: bool = False  #: since the last pin, or that one was refused, or cut short


class Backoff:
    """Records each process's pins, and when it may be pinned next."""

    def __init__(self) -> None:
        self.resets = 0  #: of all processes
        self._boot = 0.0
        self._records: Recent[tuple[int, int], PinRecord] = Recent()  # by pid and start

    def begin(self, boot: float) -> None:
        """Begin another scan; `boot`: when, seconds since boot."""
        self._boot = boot
        self._records.begin(boot)

    def record(self, facts: ProcessFacts) -> PinRecord:
        """Return the history of a process."""
        return self._records.get((facts.pid, facts.start)) or PinRecord()

    def given(self, facts: ProcessFacts) -> frozenset[CpuSet]:
        """Return affinityd's masks of a process, also as the kernel narrowed them."""
        return frozenset(self.record(facts).given)

    def after_waiting(self, decision: Decision) -> Decision:
        """Return the decision; a process whose wait is not over is left alone for now."""
        facts, record = decision.process.facts, self.record(decision.process.facts)
        if decision.verdict == FITS and record.is_reset:  # its next change is another reset
            self._set(facts, replace(record, is_reset=False, refusal=None))
        if decision.verdict != DRIFTED:
            return decision
        age = self._boot - facts.start / TICKS
        if age < GRACE:
            return _left(decision, YOUNG, SO_FAR.format(age=age, grace=GRACE))
        if record.last_pin is None or _is_ours(decision, record):
            return decision
        since_pin = self._boot - record.last_pin
        # A cpuset that is rewritten resets masks: that is no library's.
        is_first = self._boot - record.last_drift >= REST or facts.cpuset != record.cpuset
        self.resets += not record.is_reset
        record = replace(
            record,
            resets=record.resets + (not record.is_reset),
            last_drift=self._boot,
            in_a_row=min(record.in_a_row, 1) if is_first else record.in_a_row,
            is_reset=True,
        )
        self._set(facts, record)
        times, refusal = count(record.in_a_row, "time"), record.refusal
        happened = (RESET if refusal is None else AGAIN).format(times=times, refusal=refusal)
        if record.in_a_row >= len(WAITS):
            return _left(decision, GIVEN_UP, happened + (ENOUGH if refusal is None else END))
        rest = WAITS[record.in_a_row] - since_pin
        wait = LATER.format(rest=rest)
        return decision if rest <= 0 else _left(decision, WAITING, f"{happened}{wait}")

    def note(self, attempt: PinAttempt) -> None:
        """Record the outcome of a pin."""
        facts, asked = attempt.decision.process.facts, attempt.target.cpus
        pinned, refused, is_late = attempt.pinned, attempt.refused, attempt.result.is_late
        if not (pinned or refused):
            return
        before = self.record(facts)
        is_in_a_row = not is_late and not _is_ours(attempt.decision, before)
        new = [mask for mask in (attempt.cut, asked) if mask is not None]
        given = (*(mask for mask in before.given if mask not in new), *new)
        record = replace(
            before,
            given=given[-MOST_GIVEN:],
            asked=asked,
            pins=before.pins + bool(pinned),
            last_pin=self._boot,
            refusal=refused[0].reason if refused else None,
            cpuset=facts.cpuset,
            in_a_row=before.in_a_row + is_in_a_row,
            is_reset=bool(refused) or is_late,
        )
        self._set(facts, record)

    def _set(self, facts: ProcessFacts, record: PinRecord) -> None:
        self._records[facts.pid, facts.start] = record


def _is_ours(decision: Decision, record: PinRecord) -> bool:
    """Whether a drifted process is where it was pinned: its plan has changed since."""
    facts, target = decision.process.facts, decision.target
    if target is None or target.cpus == record.asked:
        return False
    return {thread.mask for thread in target.threads(facts, DRIFTED)} <= {*record.given}


def _left(decision: Decision, reason: str, why: str) -> Decision:
    return replace(decision, verdict=LEFT, reason=reason, why=why)
