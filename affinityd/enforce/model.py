"""The decisions and results of enforcement, and the sentences that explain them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from affinityd.audit.gather import short_id
from affinityd.audit.model import AuditedProcess, Job, ProcessFacts
from affinityd.cpuset import CpuSet
from affinityd.enforce.policy import Treatment
from affinityd.linux import pinning
from affinityd.linux.pinning import PinResult, ThreadResult, is_on_purpose
from affinityd.linux.processes import ENDED, Thread
from affinityd.topology.nearness import MASK, UNPINNED

#: Owners of jobs besides the schedulers of `affinityd.audit.model`: `Job.scheduler` of a
#: container that none started, and of a cgroup that a rule names.
CONTAINER, CGROUP = "container", "cgroup"

SHARE = "share"  #: near its GPU, on CPUs that are another rank's by its mode, or reserved
CAUSES = (MASK, UNPINNED, SHARE)  #: why a process should be pinned

FITS = "fits"  #: it runs where it should
DRIFTED = "drifted"  #: it does not, and a pin would change that
LEFT = "left"  #: it is left alone

#: Why a process is left alone; of each, `Decision.why` says more.
NO_POLICY = "no_policy"  #: none has been readable yet
NO_JOB = "no_job"  #: it is in no scheduler's, no container, no cgroup that a rule names
DAEMON = "daemon"  #: it is known to run on every node
ORPHAN = "orphan"  #: its job is over
POLICY = "policy"  #: a rule leaves it, or may
OPTED_OUT = "opted_out"  #: AFFINITYD=off
UNKNOWN_PLACE = "unknown_place"  #: of its GPU
UNKNOWN_CPUSET = "unknown_cpuset"  #: or it is not its allocation
ALLOCATION = "allocation"  #: its job was given no CPU near its GPU
NO_PLAN = "no_plan"
ON_PURPOSE = "on_purpose"  #: it, or a thread of it, has a mask of its own
YOUNG = "young"
WAITING = "waiting"  #: it was reset lately
GIVEN_UP = "given_up"  #: it was reset again and again
REASONS = (
    *(NO_POLICY, NO_JOB, DAEMON, ORPHAN, POLICY, OPTED_OUT, UNKNOWN_PLACE, UNKNOWN_CPUSET),
    *(ALLOCATION, NO_PLAN, ON_PURPOSE, YOUNG, WAITING, GIVEN_UP),
)

#: The outcomes of a pin.
PINNED = "pinned"  #: all of its drifted threads run where they should
CUT = "cut"  #: a thread got less than was asked: its cpuset has become smaller
REFUSED = "refused"  #: the kernel refused a thread
UNSETTLED = "unsettled"  #: it starts threads faster than they can be pinned: the next scan goes on
PIN_OUTCOMES = (PINNED, CUT, REFUSED, UNSETTLED)


def job_name(scheduler: str, job_id: str, pod: str | None) -> str:
    """Return a job as people read it: `slurm 7`, `pod vision/train-0`, `container cd34cd34cd34`."""
    if pod is not None:
        return f"pod {pod}"
    return f"{scheduler} {short_id(job_id) if scheduler == CONTAINER else job_id}"


@dataclass(frozen=True)
class TargetCpus:
    """The standard by which the masks of one process's threads are judged."""

    cpus: CpuSet  #: where it should run
    cpuset: CpuSet  #: the online CPUs that its cgroup allows
    #: Masks chosen for the whole process: its own, and affinityd's.
    usual: frozenset[CpuSet]
    given: frozenset[CpuSet] = frozenset()  #: affinityd's masks, by this plan or an earlier one

    def of(self, mask: CpuSet) -> str:
        """Return FITS, DRIFTED, or ON_PURPOSE for a mask that was chosen for this thread.

        A narrower one than its target fits, unless affinityd gave it while the cpuset was
        smaller: the kernel keeps it when the cpuset grows (since Linux 6.2).
        """
        if mask == self.cpus or (mask < self.cpus and mask not in self.given):
            return FITS
        return ON_PURPOSE if is_on_purpose(mask, self.usual, self.cpuset) else DRIFTED

    def threads(self, facts: ProcessFacts, verdict: str) -> list[Thread]:
        """Return the running threads of a process for whose mask `of` returns this verdict."""
        of = {mask: self.of(mask) for mask in {thread.mask for thread in facts.threads}}
        running = facts.threads[1:] if facts.state in ENDED else facts.threads
        return [thread for thread in running if of[thread.mask] == verdict]


@dataclass(frozen=True)
class Decision:
    """The decision about one process."""

    process: AuditedProcess
    verdict: str  #: FITS, DRIFTED or LEFT
    job: Job | None = None
    pod: str | None = None  #: NAMESPACE/NAME of the job, where it is a pod and they are known
    treatment: Treatment | None = None  #: None: the policy was not applied
    target: TargetCpus | None = None  #: None: where it should run is not known
    #: Of CAUSES: why it should be pinned; ALLOCATION of the audit's, if no pin helps; None: it
    #: runs where it should, or was not judged.
    cause: str | None = None
    reason: str | None = None  #: of REASONS, if it is left alone
    why: str | None = None  #: that, or how it has drifted, in a sentence with what would change it
    drifted: int = 0  #: its threads that a pin would move
    on_purpose: int = 0  #: its threads that were pinned on purpose, elsewhere
    is_observed: bool = False  #: it is not pinned, though it has drifted


@dataclass(frozen=True)
class PinAttempt:
    """A process that was to be pinned, and the result; ended threads are not in it."""

    decision: Decision
    target: TargetCpus
    result: PinResult

    @property
    def pinned(self) -> Sequence[ThreadResult]:
        """The threads whose mask was set."""
        return [thread for thread in self.result.threads if thread.was_set]

    @property
    def refused(self) -> Sequence[ThreadResult]:
        """The threads whose mask could not be set, each with the reason."""
        return self.result.having(pinning.REFUSED)

    @property
    def cut(self) -> CpuSet | None:
        """The CPUs of a thread that got fewer than requested; None: none did."""
        return next((it.held for it in self.pinned if it.held < it.asked), None)

    @property
    def outcome(self) -> str | None:
        """How it is counted: the worst of PIN_OUTCOMES; None: there was nothing left to pin."""
        worst = {
            REFUSED: self.refused,
            CUT: self.cut,
            UNSETTLED: not self.result.is_settled and not self.result.is_gone,
            PINNED: self.pinned,
        }
        return next((outcome for outcome, is_so in worst.items() if is_so), None)


#: For reasons that are found before its place.
WHY: Mapping[str, str] = {
    DAEMON: "it is a known system daemon",
    NO_JOB: (
        "it is in no job, or has left its parent's job (its cgroups are {cgroups}): start "
        "it by Slurm or in a container, or name its cgroup in a rule of the policy"
    ),
    NO_POLICY: "no policy could be read since the start: correct the policy file",
    POLICY: "{which} of the policy leaves it alone",
    OPTED_OUT: "AFFINITYD=off is in the environment of process {pid} of its job",
    UNKNOWN_PLACE: "the NUMA node of {gpus} is not known: affinityd doctor says what would help",
    UNKNOWN_CPUSET: (
        "the cpuset of process {pid} cannot be read here: mount the node's cgroups "
        "where the daemon runs"
    ),
}


class ExemptError(Exception):
    """A process is left alone."""

    def __init__(self, reason: str, why: str | None = None, **values: object) -> None:
        super().__init__(WHY[reason].format(**values) if why is None else why)
        self.reason = reason
