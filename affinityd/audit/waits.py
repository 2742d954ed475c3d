"""How long the threads of a process waited for a CPU, and the facts that explain it. Pure.

A remedy follows from a fact that the kernel counts; without such a fact there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from affinityd.cpuset import CpuSet, format_list, several
from affinityd.linux.scheduling import ThreadTime
from affinityd.text import count

THROTTLED, OWN_THREADS, NEIGHBOR, SYSTEM = "throttled", "own_threads", "neighbor", "system"
WAIT_CAUSES = (THROTTLED, OWN_THREADS, NEIGHBOR, SYSTEM)

SHORT_LIVED = "short-lived threads"  #: why the waits of a process are not known
NOTABLE = 0.01  #: a process waits if its threads do so for more than this part of the interval
KNOWN = 0.2  #: a fact explains a wait if it accounts for this part of the wait
MOSTLY = 0.5  #: a CPU limit that was used up in this part of its periods is the cause


@dataclass(frozen=True)
class Runner:
    """Another process, and the seconds for which it ran on the CPUs in question."""

    kind: str  #: OWN_THREADS: of the same job; else NEIGHBOR or SYSTEM
    pid: int
    name: str
    owner: str | None  #: its job, container or service
    ran: float  #: its CPU time × the part of its mask that lies in the CPUs in question


@dataclass(frozen=True)
class Waits:
    """The seconds for which a process's threads waited, and what else the kernel counts."""

    seconds: float  #: length of the interval
    waited: float | None  #: of all threads together; None: threads began and ended meanwhile
    ran: float = 0.0  #: of all threads that may run only on `cpus`, together
    cpus: CpuSet = frozenset()  #: CPUs on which the waiting threads may run
    elsewhere: CpuSet = frozenset()  #: the other CPUs that are online
    throttled: float = 0.0  #: the longest throttling of its cgroup or a parent, summed over CPUs
    used_up: float = 0.0  #: the part of the limit's periods in which the cgroup used the limit up
    limited: str | None = None  #: the folder of the cgroup with the limit
    stolen: float = 0.0  #: taken by the hypervisor from `cpus`, whichever process ran
    runners: Sequence[Runner] = ()  #: processes that ran on `cpus`, the longest runners first
    threads: Mapping[int, ThreadTime] = field(default_factory=dict)  #: of measured threads, by tid
    is_bound_to_one: bool = False  #: waiting threads may run on one CPU only, other threads on more

    @property
    def others(self) -> Sequence[Runner]:
        """The processes of other jobs that ran on `cpus`."""
        return [runner for runner in self.runners if runner.kind != OWN_THREADS]

    @property
    def cause(self) -> str | None:
        """The fact that explains the wait; None: the wait is short, or no fact explains it."""
        if self.waited is None or self.waited < NOTABLE * self.seconds:
            return None
        # Even alone on its CPUs the process would have run no longer than its limit.
        if self.used_up >= MOSTLY or self.throttled >= MOSTLY * self.waited:
            return THROTTLED
        ran_by_job = self.ran + sum(it.ran for it in self.runners if it.kind == OWN_THREADS)
        surplus = ran_by_job + self.waited - len(self.cpus) * self.seconds
        if surplus >= KNOWN * self.waited:
            return OWN_THREADS
        if self.others and sum(other.ran for other in self.others) >= KNOWN * self.waited:
            return self.others[0].kind
        return None


def remedy(waits: Waits, scheduler: str | None, bound_by: str | None = None) -> str | None:
    """Return the remedy for the cause of a process's waits; None: no cause is known.

    `scheduler`: of the process's job. `bound_by`: what set the threads' masks; None: not read.
    """
    cause = waits.cause
    if cause is None:
        return None
    if cause == THROTTLED:
        return (
            f"the CPU limit of its cgroup {waits.limited} is too small: raise the limit, or "
            "leave it out and keep the request"
        )
    if cause == OWN_THREADS and waits.is_bound_to_one:
        bound = f"its threads are all bound to {several('CPU', waits.cpus)}"
        if bound_by is None:
            return f"{bound}, though it may use others: affinityd why says what bound them"
        return f"{bound} by {bound_by}, though it may use others: remove that binding"
    if cause == OWN_THREADS:
        return (
            f"its job has more threads to run than {count(len(waits.cpus), 'CPU')}: set "
            f"OMP_NUM_THREADS to at most {len(waits.cpus)}, or start fewer workers"
        )
    names = []
    for other in waits.others[:3]:
        owner = f" of {other.owner}" if other.owner else ""
        names.append(f"{other.name} (process {other.pid}{owner})")
    confine = _confine(waits, waits.others[0], scheduler)
    return f"{', '.join(names)} also ran on its CPUs: {confine}"


def _confine(waits: Waits, other: Runner, scheduler: str | None) -> str:
    if other.kind == SYSTEM:
        return (
            "keep a service off these CPUs with CPUAffinity= in its unit, and ranks off the CPUs "
            "of the service with affinityd's --reserved-cpus"
        )
    schedulers = {scheduler, (other.owner or "").partition(" ")[0]}
    if "slurm" in schedulers:
        return "let Slurm confine tasks (ConstrainCores=yes), and submit steps with --exact"
    if "kubernetes" in schedulers:
        return (
            "give both pods whole CPUs (requests = limits) under kubelet's static CPU manager, or "
            "let affinityd place them"
        )
    if not waits.elsewhere:
        return "start each process with affinityd exec on CPUs of its own"
    return f"affinityd pin --tree --cpus {format_list(waits.elsewhere)} {other.pid} keeps it off"
