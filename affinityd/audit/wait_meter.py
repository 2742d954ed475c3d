"""Measures how long processes waited between scans, and which other processes ran on their CPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from affinityd.audit.gather import ticks_since
from affinityd.audit.jobs import membership, service
from affinityd.audit.model import ProcessFacts
from affinityd.audit.waits import NEIGHBOR, NOTABLE, OWN_THREADS, SYSTEM, Runner, Waits
from affinityd.cpuset import CpuSet
from affinityd.grouping import REMEMBERED
from affinityd.linux.cgroup import mask_of
from affinityd.linux.files import content
from affinityd.linux.processes import (
    INIT,
    PROC,
    ROOT,
    ProcessTable,
    Stat,
    cgroups_of,
    thread_ids,
    uid_of,
)
from affinityd.linux.scheduling import (
    TICKS,
    ThreadTime,
    Throttling,
    limiting_folders,
    stolen_times,
    thread_time,
    throttling,
)

MOST_OTHERS = 64  #: how many other processes are read: those that used most CPU time
MOST_MASKS = 256  #: how many threads of each process are read
LEAST_PART = 0.005  #: proportion of the interval: a process that ran for less is not listed
#: If a process ran longer than its living threads by more than this part, threads have ended.
SHORT_LIVED_PART = 0.2
#: Ticks by which a process and its threads may differ, since they are read one after another.
LEAST_TICKS = 5

_Name = tuple[int, int]  #: tid or pid, and start: no other thread or process has both


@dataclass(frozen=True)
class Other:
    """A process that ran for some seconds between two looks, on the CPUs of its mask."""

    stat: Stat
    ran: float
    mask: CpuSet
    uid: int | None
    owner: str | None  #: name of its job or container
    service: str | None

    @classmethod
    def of(cls, stat: Stat, ran: float, proc: str) -> Other:
        """Read the mask, the user and the owner of a process that ran for `ran` seconds."""
        cgroups = cgroups_of(stat.number, proc)
        tids = thread_ids(stat.number, proc)[:MOST_MASKS]
        # OpenMP binds each thread to another CPU, so the main thread's mask has only one CPU.
        mask: set[int] = set()
        for tid in tids:
            mask.update(mask_of(tid) or ())
        owner = membership(cgroups, proc.removesuffix("proc")).owner
        unit = service(cgroups)
        if unit is not None and unit.startswith("user@"):  # the unit runs a user's own processes
            unit = None
        return cls(stat, ran, frozenset(mask), uid_of(stat.number, proc), owner, unit)

    def kind(self, process: ProcessFacts) -> str:
        """Return its kind, seen from a process: OWN_THREADS if both are of one job or session."""
        stat = self.stat
        owner = process.membership.owner
        is_same = owner is not None and owner == self.owner
        if owner is None and self.owner is None:
            is_same = stat.session == process.session or stat.parent == process.pid
            # A daemon of the node may start the jobs of several users.
            is_same |= stat.parent == process.parent != INIT and self.uid == process.uid
        if is_same:
            return OWN_THREADS
        if stat.is_kernel_thread:
            return SYSTEM
        if self.owner is None and (self.service or self.uid == ROOT):
            return SYSTEM
        return NEIGHBOR


def runners_beside(process: ProcessFacts, cpus: CpuSet, others: Iterable[Other]) -> list[Runner]:
    """Return the processes that ran on these CPUs of a process, the longest runners first."""
    runners = []
    for other in others:
        stat = other.stat
        shared = cpus & other.mask
        if shared and stat.number != process.pid:
            ran_there = other.ran * len(shared) / len(other.mask)
            owner = other.owner or other.service
            runners.append(Runner(other.kind(process), stat.number, stat.name, owner, ran_there))
    return sorted(runners, key=_longest_first)


def _longest_first(runner: Runner) -> tuple[float, int]:
    return -runner.ran, runner.pid


@dataclass(frozen=True)
class _Look:
    """All counters at one moment."""

    time: float  #: seconds since boot
    stolen: Mapping[int, float]  #: CPU → seconds that the hypervisor took from it
    processes: Mapping[_Name, ProcessFacts]  #: the waiters
    times: Mapping[_Name, ThreadTime]
    throttled: Mapping[str, Throttling]  #: folder of a cgroup → its throttling
    others: Mapping[_Name, int] | None  #: ticks of every process; None: not read


class WaitMeter:
    """Measures between two calls how long processes waited.

    Reading every process costs as much as a scan, so the meter does it only while some process
    waits, or with `names_others` at each call.
    """

    def __init__(self, proc: str = PROC, *, names_others: bool = False) -> None:
        self._proc = proc
        self._root = proc.removesuffix("proc")
        #: Whether the kernel counts how long threads wait.
        self.counts = content(f"{proc}/self/schedstat") is not None
        self._names_others = names_others
        self._reads_others = names_others
        self._before: _Look | None = None
        self._looks: dict[_Name, _Look] = {}  # waiting process → the last counters that have it
        self._folders: dict[str, list[str]] = {}  # by /proc/PID/cgroup, if throttling is counted

    def look(
        self, waiters: Sequence[ProcessFacts], processes: ProcessTable, now: float
    ) -> Mapping[int, Waits]:
        """Return the waits since the last call, by pid; `now`: seconds since boot.

        The waits of a new process are unknown; all waits are, if the kernel does not count waits.
        """
        before = self._before
        look = self._counters(waiters, processes, now)
        self._before = look
        if before is None or now <= before.time:
            self._looks = dict.fromkeys(look.processes, look)
            return {}
        looks = self._looks
        self._looks = {
            name: last for name, last in looks.items() if now - last.time < REMEMBERED
        } | dict.fromkeys(look.processes, look)
        others = self._others(before, look, processes)
        waits_of = {}
        self._reads_others = self._names_others
        for waiter in waiters:
            since = looks.get((waiter.pid, waiter.start), before)  # maybe an earlier look
            waits = self._waits(waiter, since, look, others)
            if waits is not None:
                waits_of[waiter.pid] = waits
                if waits.waited is not None and waits.waited > NOTABLE * waits.seconds:
                    self._reads_others = True
        return waits_of

    def _waits(
        self, waiter: ProcessFacts, since: _Look, look: _Look, others: Sequence[Other]
    ) -> Waits | None:
        """Return how long a process waited between two moments; None: unknown for all threads."""
        seconds = look.time - since.time
        times = self._thread_times(waiter, since, look)
        if not times:
            return None
        waited = sum(time.waited for time in times.values())
        waiting = {tid for tid, time in times.items() if time.waited > NOTABLE * seconds}
        masks = [thread.mask for thread in waiter.threads if thread.tid in waiting]
        cpus = frozenset[int]().union(*masks) or waiter.cpus
        waiter_before = since.processes.get((waiter.pid, waiter.start))
        ran = ticks_since(waiter, waiter_before)
        ran_there = 0
        for thread, ticks in zip(waiter.threads, ran, strict=True):
            if thread.mask <= cpus:
                ran_there += ticks
        of_process = waiter.cpu_ticks
        if waiter_before is not None:
            of_process -= waiter_before.cpu_ticks
        has_short_lived = of_process > (1 + SHORT_LIVED_PART) * sum(ran) + LEAST_TICKS
        limit, folder = self._limit(waiter, since, look)
        stolen = 0.0
        for cpu in cpus & since.stolen.keys() & look.stolen.keys():
            stolen += max(0.0, look.stolen[cpu] - since.stolen[cpu])
        return Waits(
            seconds,
            None if has_short_lived else waited,
            ran_there / TICKS,
            cpus,
            frozenset(look.stolen) - waiter.cpus,
            limit.seconds,
            limit.used_up / limit.periods if limit.periods else 0.0,
            folder,
            stolen,
            runners_beside(waiter, cpus, others) if waited > NOTABLE * seconds else [],
            times,
            is_bound_to_one=len(cpus) == 1 < len(masks) and cpus < (waiter.cpuset or waiter.cpus),
        )

    def _counters(
        self, waiters: Sequence[ProcessFacts], processes: ProcessTable, now: float
    ) -> _Look:
        folders_of = {}
        throttled = {}
        for groups in {waiter.cgroups for waiter in waiters}:
            folders = self._folders.get(groups) or limiting_folders(groups, self._root)
            folders_of[groups] = folders
            for folder in folders:
                if folder not in throttled:
                    throttled[folder] = throttling(folder) or Throttling()
        self._folders = folders_of
        times: dict[_Name, ThreadTime] = {}
        for waiter in waiters:
            times |= self._times(waiter)
        others = None
        if self._reads_others:
            others = {}
            for stat in processes.by_pid.values():
                others[stat.number, stat.start] = stat.cpu_ticks
        return _Look(
            time=now,
            stolen=stolen_times(self._proc),
            processes={(waiter.pid, waiter.start): waiter for waiter in waiters},
            times=times,
            throttled=throttled,
            others=others,
        )

    def _times(self, waiter: ProcessFacts) -> Mapping[_Name, ThreadTime]:
        """Read the times of all threads; a thread that waits may have run for less than a tick."""
        times = {}
        for thread in waiter.threads:
            time = thread_time(waiter.pid, thread.tid, self._proc)
            if time is not None:
                times[thread.tid, thread.start] = time
        return times

    @staticmethod
    def _thread_times(waiter: ProcessFacts, before: _Look, look: _Look) -> dict[int, ThreadTime]:
        """Return how long the threads ran and waited since the last call, by tid.

        A new thread counts with all its time: the process did not have it before or, if the process
        is new here, too, the thread started after the last call.
        """
        times = {}
        waiter_before = before.processes.get((waiter.pid, waiter.start))
        threads_before = set()
        if waiter_before is not None:
            threads_before = {(thread.tid, thread.start) for thread in waiter_before.threads}
        for thread in waiter.threads:
            name = thread.tid, thread.start
            is_new = thread.start >= before.time * TICKS
            if waiter_before is not None:
                is_new = name not in threads_before
            # A thread that calls execve(2) gets the main thread's id and start, but not its times.
            first = before.times.get(name, ThreadTime(0.0, 0.0) if is_new else None)
            last = look.times.get(name)
            if first is not None and last is not None:
                ran = max(0.0, last.ran - first.ran)
                waited = max(0.0, last.waited - first.waited)
                times[thread.tid] = ThreadTime(ran, waited)
        return times

    def _limit(
        self, waiter: ProcessFacts, before: _Look, look: _Look
    ) -> tuple[Throttling, str | None]:
        """Return the longest throttling of a process's cgroup and its parents, and the folder.

        A cgroup that was removed and made again, as at a container's restart, counts from 0.
        """
        since = []
        for folder in self._folders[waiter.cgroups]:
            now = look.throttled[folder]
            then = before.throttled.get(folder, now)
            more = Throttling(
                max(0.0, now.seconds - then.seconds),
                max(0, now.periods - then.periods),
                max(0, now.used_up - then.used_up),
            )
            since.append((more, folder))
        return max(since, default=(Throttling(), None))

    def _others(self, before: _Look, look: _Look, processes: ProcessTable) -> list[Other]:
        if before.others is None or look.others is None:
            return []
        least = LEAST_PART * (look.time - before.time)
        used = []
        for (pid, start), ticks in look.others.items():
            seconds = (ticks - before.others.get((pid, start), 0)) / TICKS
            if seconds > least:
                used.append((seconds, pid))
        used.sort(reverse=True)
        return [
            Other.of(processes.by_pid[pid], seconds, self._proc)
            for seconds, pid in used[:MOST_OTHERS]
        ]
