"""How long the threads of a process waited for a CPU, and for what.

Over an interval a process's threads were runnable for some seconds (they ran, or waited), and their
CPUs had some seconds to give. What a CPU did instead of running them tells the cause: it ran other
threads of the job, because these are more than the CPUs; it ran other processes; it handled
interrupts; the hypervisor took it; or the job was throttled. Of the seconds waited,

    throttled    at most those of the cgroup, as the kernel counts them
    own_threads  those by which the time that the job ran, and the process waited, exceeds its
                 CPUs' time: others gone, it would still wait for as long
    the others   at most the time that each took of these CPUs, in proportion if that is more
    own_threads  what is left, as far as other threads of the job ran meanwhile
    unknown      the rest

While an interrupt is handled, or the hypervisor has the CPU, the kernel counts the thread there as
running: that share of these seconds is added. All but the first are inference: *likely*.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from affinityd.cpuset import CpuSet, format_list
from affinityd.linux.scheduling import CpuTime, ThreadTime
from affinityd.text import count

THROTTLED, OWN_THREADS, NEIGHBOR = "throttled", "own_threads", "neighbor"
SYSTEM, INTERRUPTS, STEAL, UNKNOWN = "system", "interrupts", "steal", "unknown"
CAUSES = (THROTTLED, OWN_THREADS, NEIGHBOR, SYSTEM, INTERRUPTS, STEAL, UNKNOWN)

#: Kinds of processes that are of no job of the one that waits.
OTHERS = (NEIGHBOR, SYSTEM, INTERRUPTS)

#: A process waits if its threads do for more than this part of the interval.
NOTABLE = 0.01
#: A cause is named if it has this part of the seconds.
KNOWN = 0.2
#: A limit that was used up in this part of its periods is the cause, even if others ran.
MOSTLY = 0.5


@dataclass(frozen=True)
class Runner:
    """Another process, and the seconds for which it ran on the CPUs in question."""

    kind: str  #: OWN_THREADS: of the same job; NEIGHBOR, SYSTEM, INTERRUPTS
    pid: int
    name: str
    owner: str | None  #: its job, container or service
    ran: float  #: as far as is known: that part of its time which these CPUs are of its mask
    most: float  #: all of its time

    @property
    def label(self) -> str:
        """How a sentence names it."""
        return f"{self.name} (process {self.pid}{f' of {self.owner}' if self.owner else ''})"


@dataclass(frozen=True)
class Use:
    """The work of a process's threads, and of the CPUs that they may use, in an interval."""

    seconds: float
    cpus: CpuSet
    threads: Sequence[ThreadTime]  #: of those that were measured
    ran: float  #: all of its threads
    cpu: CpuTime  #: of all these CPUs
    runners: Sequence[Runner] = ()
    throttled: float = 0.0  #: summed over CPUs


@dataclass(frozen=True)
class Waits:
    """The seconds for which a process's threads waited, by cause."""

    seconds: float  #: of the interval
    causes: Mapping[str, float]  #: all of CAUSES
    cpus: CpuSet = frozenset()  #: on which they may run
    elsewhere: CpuSet = frozenset()  #: the other CPUs that are online
    runners: Sequence[Runner] = ()  #: that ran there meanwhile, the longest first
    limited: str | None = None  #: the folder of the cgroup with the limit
    interrupt: str | None = None  #: that was handled most often, where it was counted
    used_up: float = 0.0  #: the part of the limit's periods in which its cgroup used it up
    threads: Mapping[int, ThreadTime] = field(default_factory=dict)  #: by tid, of those measured

    @property
    def waited(self) -> float:
        """The seconds of all threads together."""
        return sum(self.causes.values())

    @property
    def main_cause(self) -> str | None:
        """The known cause of most seconds; None: it hardly waited, or most is unknown.

        If the limit was used up in most periods, it is the limit: without others the process would
        have run no longer.
        """
        if self.used_up >= MOSTLY and self.waited >= NOTABLE * self.seconds:
            return THROTTLED
        cause = max(CAUSES[:-1], key=lambda cause: self.causes[cause])
        least = max(NOTABLE * self.seconds, KNOWN * self.waited)
        return cause if self.causes[cause] >= least else None

    def runner(self, kind: str) -> Runner | None:
        """Return the process of that kind which ran longest."""
        return next((runner for runner in self.runners if runner.kind == kind), None)


#: Scheduler of either job → how a neighbor is kept off.
CONFINES = {
    "slurm": "let Slurm confine tasks (ConstrainCores=yes), and submit steps with --exact",
    "kubernetes": (
        "give both pods whole CPUs (requests = limits) under kubelet's static CPU manager, or let "
        "affinityd place them"
    ),
}
#: Cause → the remedy, and why.
REMEDIES = {
    THROTTLED: (
        "the CPU limit of {limited} is too small for it: raise the limit, or leave it out and keep "
        "the request"
    ),
    OWN_THREADS: (
        "its job has more threads to run than {number}: set OMP_NUM_THREADS to at most {most}, or "
        "start fewer workers{longest}"
    ),
    NEIGHBOR: "{runner} ran there: {confines}",
    SYSTEM: (
        "{runner} ran there: keep it off, for a service with CPUAffinity= in its unit, and ranks "
        "off its CPUs with affinityd's --reserved-cpus"
    ),
    INTERRUPTS: (
        "{interrupt} handled there: write other CPUs to smp_affinity_list in the /proc/irq "
        "folder of its device"
    ),
    STEAL: "the machine is virtual, and its host gave the CPUs to others: ask for dedicated ones",
}


def remedy(waits: Waits, scheduler: str | None) -> str | None:
    """Return the remedy of the main cause of a process's waits; None: there is none.

    `scheduler`: of its job.
    """
    cause = waits.main_cause
    if cause is None:
        return None
    runner, sibling = waits.runner(cause), waits.runner(OWN_THREADS)
    return REMEDIES[cause].format(
        limited=f"its cgroup {waits.limited}",
        number=count(len(waits.cpus), "CPU"),
        most=len(waits.cpus),
        longest=f" ({sibling.label} ran longest beside it)" if sibling else "",
        runner=runner.label if runner else "another process",
        confines=_confines(waits, runner, scheduler),
        interrupt=f"{waits.interrupt} is" if waits.interrupt else "interrupts are",
    )


def _confines(waits: Waits, runner: Runner | None, scheduler: str | None) -> str:
    """Return how a neighbor is kept off a process's CPUs."""
    other = runner.owner.partition(" ")[0] if runner and runner.owner else None
    for name in (scheduler, other):
        if name in CONFINES:
            return CONFINES[name]
    if not waits.elsewhere or runner is None:
        return "start each of them with affinityd exec on CPUs of its own"
    return f"affinityd pin --tree --cpus {format_list(waits.elsewhere)} {runner.pid} keeps it off"


def split(use: Use) -> Mapping[str, float]:
    """Return the seconds waited, by cause. Pure."""
    waited = sum(thread.waited for thread in use.threads)
    capacity = len(use.cpus) * use.seconds
    ran, most = defaultdict[str, float](float), defaultdict[str, float](float)
    for runner in use.runners:
        ran[runner.kind] += runner.ran
        most[runner.kind] += runner.most
    ran_by_job = use.ran + ran[OWN_THREADS]
    of_others = max(0.0, use.cpu.tasks - ran_by_job)
    by_others = _fitted(of_others, {kind: (ran[kind], most[kind]) for kind in OTHERS})
    # Interrupts found a thread of the job on their CPU, one of others, or none.
    while_own, while_other = (
        min(1.0, time / capacity) if capacity else 0.0 for time in (ran_by_job, of_others)
    )
    took = {
        NEIGHBOR: by_others[NEIGHBOR],
        SYSTEM: by_others[SYSTEM],
        INTERRUPTS: by_others[INTERRUPTS] + use.cpu.interrupts * while_other,
        STEAL: use.cpu.steal * while_other,
        UNKNOWN: max(0.0, of_others - sum(by_others.values())),
    }

    causes = dict.fromkeys(CAUSES, 0.0)
    causes[THROTTLED] = min(waited, use.throttled)
    left = waited - causes[THROTTLED]
    causes[OWN_THREADS] = min(left, max(0.0, ran_by_job + waited - capacity))
    left -= causes[OWN_THREADS]
    all_took = sum(took.values())
    for cause, seconds in took.items():
        causes[cause] = seconds * min(1.0, left / all_took if all_took else 0.0)
    left -= sum(causes[cause] for cause in took)
    beside = sum(min(thread.waited, max(0.0, ran_by_job - thread.ran)) for thread in use.threads)
    more = max(0.0, min(left, beside - causes[OWN_THREADS]))
    causes[OWN_THREADS] += more
    causes[UNKNOWN] += max(0.0, left - more)
    causes[INTERRUPTS] += use.cpu.interrupts * while_own
    causes[STEAL] += use.cpu.steal * while_own
    return {cause: round(seconds, 9) for cause, seconds in causes.items()}


def _fitted(whole: float, parts: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Return by kind how long processes ran on these CPUs, which ran others for `whole` seconds.

    `parts`: how long they did if each used all CPUs of its mask alike, and at most. If that is more
    than the CPUs ran, all used them less; if it is less, those that could have, more.
    """
    likely = sum(ran for ran, _ in parts.values())
    most = sum(most for _, most in parts.values())
    if likely >= whole:
        return {kind: ran * whole / likely if likely else 0.0 for kind, (ran, _) in parts.items()}
    further = min(1.0, (whole - likely) / (most - likely)) if most > likely else 0.0
    return {kind: ran + further * (most - ran) for kind, (ran, most) in parts.items()}
