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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from affinityd.audit.gather import membership, service
from affinityd.audit.model import KUBERNETES, SLURM, Membership
from affinityd.cpuset import CpuSet, format_list
from affinityd.linux.processes import (
    INIT,
    PROC,
    ROOT,
    ProcessTable,
    Stat,
    Thread,
    cgroups_of,
    mask_of,
    uid_of,
)
from affinityd.linux.scheduling import (
    TICKS,
    CpuTime,
    ThreadTime,
    cpu_times,
    limiting_folders,
    thread_time,
    throttled,
    total,
)
from affinityd.text import count

THROTTLED, OWN_THREADS, NEIGHBOR = "throttled", "own_threads", "neighbor"
SYSTEM, INTERRUPTS, STEAL, UNKNOWN = "system", "interrupts", "steal", "unknown"
CAUSES = (THROTTLED, OWN_THREADS, NEIGHBOR, SYSTEM, INTERRUPTS, STEAL, UNKNOWN)

#: Kinds of processes that are of no job of the one that waits.
OTHERS = (NEIGHBOR, SYSTEM, INTERRUPTS)

#: Of one process in one scan: its main thread, and those that used most CPU time.
MOST_THREADS = 32
#: Processes that are looked at as neighbors: those that used most CPU time.
MOST_OTHERS = 64
#: A process that ran for less than this part of the interval is no neighbor worth a name.
LEAST_PART = 0.005
#: A process waits if its threads do for more than this part of the interval.
NOTABLE = 0.01
#: A cause is named if it has this part of the seconds.
KNOWN = 0.2
#: Kernel threads that handle interrupts.
HANDLERS = ("ksoftirqd/", "irq/")

_Name = tuple[int, int]  #: tid or pid, and start: one thread or process for good


@dataclass(frozen=True)
class Runner:
    """Another process, and the seconds for which it ran on the CPUs in question."""

    kind: str  #: OWN_THREADS: of the same job; NEIGHBOR, SYSTEM, INTERRUPTS
    pid: int
    name: str
    uid: int | None
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
    runners: Sequence[Runner] = ()  #: that ran meanwhile, those that ran longest first
    limited: str | None = None  #: the folder of the cgroup with the limit
    interrupt: str | None = None  #: that was handled most often, where it was counted

    @property
    def waited(self) -> float:
        """The seconds of all threads together."""
        return sum(self.causes.values())

    @property
    def main_cause(self) -> str | None:
        """The known cause of most seconds; None: it hardly waited, or most is unknown."""
        cause = max(CAUSES[:-1], key=lambda cause: self.causes[cause])
        least = max(NOTABLE * self.seconds, KNOWN * self.waited)
        return cause if self.causes[cause] >= least else None

    def runner(self, kind: str) -> Runner | None:
        """Return the process of that kind which ran longest."""
        return next((runner for runner in self.runners if runner.kind == kind), None)


SLURM_CONFINES = "let Slurm confine tasks (ConstrainCores=yes), and submit steps with --exact"
KUBELET_CONFINES = (
    "give both pods whole CPUs (requests = limits) under kubelet's static CPU manager, or let "
    "affinityd place them"
)
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
        "{interrupt} handled there: write other CPUs to smp_affinity_list of its /proc/irq folder"
    ),
    STEAL: "the machine is virtual, and its host gave the CPUs to others: ask for dedicated ones",
}


def remedy(waits: Waits, membership: Membership) -> str | None:
    """Return the remedy of the main cause of a process's waits; None: there is none."""
    cause = waits.main_cause
    if cause is None:
        return None
    runner, longest = waits.runner(cause), waits.runner(OWN_THREADS)
    return REMEDIES[cause].format(
        limited=f"its cgroup {waits.limited}",
        number=count(len(waits.cpus), "CPU"),
        most=len(waits.cpus),
        longest=f" ({longest.label} ran longest beside it)" if longest else "",
        runner=runner.label if runner else "another process",
        confines=_confines(waits, runner, membership),
        interrupt=f"{waits.interrupt} is" if waits.interrupt else "interrupts are",
    )


def _confines(waits: Waits, runner: Runner | None, membership: Membership) -> str:
    """Return how a neighbor is kept off a process's CPUs."""
    schedulers = {
        *((membership.job.scheduler,) if membership.job else ()),
        *((runner.owner or "").split(" ")[:1] if runner else ()),
    }
    if SLURM in schedulers:
        return SLURM_CONFINES
    if KUBERNETES in schedulers or runner is None:
        return KUBELET_CONFINES
    if not waits.elsewhere:
        return "pin the job to some of the CPUs, with affinityd exec, and the other one to the rest"
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
    return causes


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


@dataclass(frozen=True)
class Other:
    """A process that ran for some seconds between two looks, on the CPUs of its mask."""

    stat: Stat
    ran: float
    mask: CpuSet
    uid: int | None
    membership: Membership
    service: str | None

    @classmethod
    def of(cls, stat: Stat, ran: float, proc: str) -> Other:
        """Read what it is."""
        cgroups = cgroups_of(stat.number, proc)
        mask, uid = mask_of(stat.number) or frozenset(), uid_of(stat.number, proc)
        return cls(stat, ran, mask, uid, membership(cgroups), service(cgroups))

    @property
    def kind(self) -> str:
        """Its kind to a process of another job."""
        if self.stat.is_kernel_thread:
            return INTERRUPTS if self.stat.name.startswith(HANDLERS) else SYSTEM
        if self.membership.owner is not None:
            return NEIGHBOR
        return SYSTEM if self.service or self.uid == ROOT else NEIGHBOR


@dataclass(frozen=True)
class Waiter:
    """A process whose waits are measured."""

    pid: int
    parent: int
    session: int | None
    membership: Membership
    cgroups: str  #: /proc/PID/cgroup
    threads: Sequence[Thread]  #: the main one first

    @property
    def cpus(self) -> CpuSet:
        """The CPUs on which any of its threads may run."""
        return frozenset().union(*{thread.mask for thread in self.threads})

    def runners(self, others: Iterable[Other]) -> Iterator[Runner]:
        """Yield the processes that ran on its CPUs, each with its part of the time there."""
        for other in others:
            if (shared := self.cpus & other.mask) and other.stat.number != self.pid:
                kind = OWN_THREADS if self._owns(other) else other.kind
                part = other.ran * len(shared) / len(other.mask)
                owner = other.membership.owner or other.service
                stat = other.stat
                yield Runner(kind, stat.number, stat.name, other.uid, owner, part, other.ran)

    def _owns(self, other: Other) -> bool:
        """Whether it is of the same job or container; where there is none, of the same session."""
        owner, stat = self.membership.owner, other.stat
        if owner is not None or other.membership.owner is not None:
            return owner == other.membership.owner
        is_near = stat.session == self.session or stat.parent == self.pid
        return is_near or stat.parent == self.parent != INIT


@dataclass(frozen=True)
class _Look:
    """The counters at one moment."""

    time: float  #: seconds since boot
    cpus: Mapping[int, CpuTime]
    ticks: Mapping[_Name, int]  #: of every thread of the waiters
    times: Mapping[_Name, ThreadTime]  #: of those that are measured
    throttled: Mapping[str, float]  #: by folder of a cgroup
    others: Mapping[_Name, int] | None  #: ticks of every process; None: they were not read


class WaitMeter:
    """Measures from look to look how long processes waited.

    To read every process costs as much as a scan: that is done while some process waits, or at
    each look where `names_others`.
    """

    def __init__(self, proc: str = PROC, *, names_others: bool = False) -> None:
        self._proc = proc
        self._root = proc.removesuffix("proc")
        self._names_others = names_others
        self._reads_others = names_others
        self._before: _Look | None = None
        self._folders: dict[str, list[str]] = {}  # of cgroups that count, by /proc/PID/cgroup

    def look(
        self, waiters: Sequence[Waiter], processes: ProcessTable, now: float
    ) -> Mapping[int, Waits]:
        """Return the waits since the last look, by pid; `now`: seconds since boot.

        Those of a process that is new, and where the kernel does not count, are not known.
        """
        before, look = self._before, self._counters(waiters, processes, now)
        self._before = look
        if before is None or now <= before.time:
            return {}
        used = {waiter.pid: self._used(waiter, before, look) for waiter in waiters}
        waited = {pid: sum(time.waited for time in its) for pid, (_, its) in used.items()}
        by_group = defaultdict[str, float](float)
        for waiter in waiters:
            by_group[waiter.cgroups] += waited[waiter.pid]
        others = self._others(before, look, processes)
        waits = {}
        for waiter in waiters:
            ran, times = used[waiter.pid]
            if not times:
                continue
            mine, limit = waited[waiter.pid], self._limit(waiter, before, look)
            of_group = mine / by_group[waiter.cgroups] if mine else 0.0
            cpus = waiter.cpus
            runners = sorted(waiter.runners(others), key=lambda it: (-it.ran, it.pid))
            use = Use(
                seconds=now - before.time,
                cpus=cpus,
                threads=times,
                ran=ran,
                cpu=total(look.cpus, cpus).plus(total(before.cpus, cpus), -1),
                runners=runners,
                throttled=limit[0] * of_group,
            )
            waits[waiter.pid] = Waits(
                use.seconds, split(use), cpus, frozenset(look.cpus) - cpus, runners, limit[1]
            )
        least = LEAST_PART * (now - before.time)
        self._reads_others = self._names_others or any(it.waited > least for it in waits.values())
        return waits

    def _counters(self, waiters: Sequence[Waiter], processes: ProcessTable, now: float) -> _Look:
        self._folders = {
            groups: self._folders.get(groups) or limiting_folders(groups, self._root)
            for groups in {waiter.cgroups for waiter in waiters}
        }
        folders = {folder for its in self._folders.values() for folder in its}
        return _Look(
            time=now,
            cpus=cpu_times(self._proc),
            ticks={
                (thread.tid, thread.start): thread.cpu_ticks
                for waiter in waiters
                for thread in waiter.threads
            },
            times={
                (thread.tid, thread.start): time
                for waiter in waiters
                for thread in self._measured(waiter)
                if (time := thread_time(waiter.pid, thread.tid, self._proc)) is not None
            },
            throttled={folder: throttled(folder) or 0.0 for folder in folders},
            others=ticks_of(processes) if self._reads_others else None,
        )

    def _measured(self, waiter: Waiter) -> Sequence[Thread]:
        """Return its main thread and those that used most CPU time since the last look."""
        ticks = self._before.ticks if self._before else {}
        main, *rest = waiter.threads
        busy = [it for it in rest if it.cpu_ticks != ticks.get((it.tid, it.start))]
        if len(busy) >= MOST_THREADS:
            busy.sort(key=lambda it: ticks.get((it.tid, it.start), 0) - it.cpu_ticks)
        return [main, *busy[: MOST_THREADS - 1]]

    @staticmethod
    def _used(waiter: Waiter, before: _Look, look: _Look) -> tuple[float, list[ThreadTime]]:
        """Return the seconds that its threads ran, and the times of those that are measured.

        Of a thread that began since the last look all counts, of one that was not read then none.
        """
        ran, times = 0.0, []
        for thread in waiter.threads:
            name = thread.tid, thread.start
            is_new = thread.start >= before.time * TICKS
            was = before.ticks.get(name, 0 if is_new else thread.cpu_ticks)
            ran += (thread.cpu_ticks - was) / TICKS
            first = before.times.get(name, ThreadTime(0.0, 0.0) if is_new else None)
            last = look.times.get(name)
            if first is not None and last is not None:
                times.append(ThreadTime(last.ran - first.ran, last.waited - first.waited))
        return ran, times

    def _limit(self, waiter: Waiter, before: _Look, look: _Look) -> tuple[float, str | None]:
        """Return for how long its cgroup was throttled, or the one above that was longest."""
        return max(
            (
                (
                    look.throttled[folder] - before.throttled.get(folder, look.throttled[folder]),
                    folder,
                )
                for folder in self._folders[waiter.cgroups]
            ),
            default=(0.0, None),
        )

    def _others(self, before: _Look, look: _Look, processes: ProcessTable) -> list[Other]:
        """Return the processes that used most CPU time between two looks."""
        if before.others is None or look.others is None:
            return []
        least = LEAST_PART * (look.time - before.time)
        used = {
            name: (ticks - before.others.get(name, 0)) / TICKS
            for name, ticks in look.others.items()
            if ticks > before.others.get(name, 0)
        }
        busiest = sorted((name for name in used if used[name] > least), key=lambda it: -used[it])
        return [
            Other.of(processes.by_pid[pid], used[pid, start], self._proc)
            for pid, start in busiest[:MOST_OTHERS]
        ]


def ticks_of(processes: ProcessTable) -> Mapping[_Name, int]:
    """Return the ticks of every process so far, those of ended threads included."""
    return {(stat.number, stat.start): stat.cpu_ticks for stat in processes.by_pid.values()}
