"""One scan: find the holders of GPUs, gather facts, judge them, measure their CPU time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from affinityd.audit.findings import HOUR, later_history, states
from affinityd.audit.gather import ProcessWalk, ticks_since
from affinityd.audit.jobs import ProcessOwners, missing_process, tree_tops, why_orphan
from affinityd.audit.judge import Judge, divided, overlap, with_allocations
from affinityd.audit.memory import SECONDS as MEMORY_SECONDS
from affinityd.audit.memory import MemoryMeter
from affinityd.audit.model import (
    NO_NAMES,
    AuditedProcess,
    ContainerNames,
    CpuTime,
    GpuHolders,
    Holding,
    NamedPods,
    ProcessFacts,
    Scan,
)
from affinityd.audit.wait_meter import WaitMeter
from affinityd.audit.waits import Waits
from affinityd.cpuset import CpuSet
from affinityd.grouping import REMEMBERED, Recent
from affinityd.linux.files import text
from affinityd.linux.processes import (
    PROC,
    ProcessTable,
    ancestors,
    exists,
    has_ended,
    since_boot,
    user_name,
)
from affinityd.linux.scheduling import TICKS
from affinityd.threads import Answers
from affinityd.topology.model import GpuKey, Keys, Topology, keys_before, moved

PROC_SECONDS = 5.0  #: seconds for which a scan may read /proc
MINUTE = 60.0

HIDDEN_PROCESSES = "some of its processes are hidden here, by hidepid= of /proc: run this as root"

NamePods = Callable[[Topology, list[AuditedProcess], ContainerNames], NamedPods]


class Auditor:
    """Scans the processes repeatedly, and keeps some facts from scan to scan."""

    def __init__(
        self,
        held: Callable[[Topology], GpuHolders],
        proc: str = PROC,
        *,
        reserved: CpuSet = frozenset(),
        name_pods: Callable[[Topology, list[AuditedProcess], ContainerNames], NamedPods]
        | None = None,
        memory_seconds: float = MEMORY_SECONDS,
    ) -> None:
        """Take the source of holders; `memory_seconds`: how long a scan may sample memory."""
        self._held = held
        self._name_pods = name_pods
        self._proc = proc
        self._records = ScanRecords(partial(has_ended, proc=proc))
        self._waits = WaitMeter(proc)
        self._memory = MemoryMeter(memory_seconds)
        self._users = Answers(user_name, 8)  # at most 8 late look-ups at once
        self._gone: set[tuple[int, GpuKey]] = set()  # holders with no process at the last scan
        #: The last scan saw a holder without a process for the first time: it may just have ended.
        self.has_unconfirmed = False
        #: The main thread's mask of each process when first seen, by pid and start.
        self._first_masks: Recent[tuple[int, int], CpuSet] = Recent()
        self._reserved = reserved
        self._judge: Judge | None = None

    def scan(self, topology: Topology, containers: ContainerNames = NO_NAMES) -> Scan:
        """Scan once; this takes at most PROC_SECONDS more than the query for the holders."""
        now = time.time()
        boot = since_boot()
        if self._judge is None or self._judge.topology is not topology:  # the node was read again
            if self._judge is not None:
                self._records.renumber(keys_before(self._judge.topology, topology))
                self._gone = set()
            self._judge = Judge(topology)
        judge = self._judge
        self._first_masks.begin(boot)
        processes = ProcessTable(self._proc)
        held = self._held(topology)
        walk = ProcessWalk(held, time.monotonic() + PROC_SECONDS, processes)
        owners = ProcessOwners(processes)
        found = list(self._audited(judge, walk, owners))
        unknown: dict[GpuKey, str] = {}
        for gpu, number in walk.late.items():
            unknown[gpu] = f"{number} of its processes were not scanned: the time limit was reached"
        # The walk is over, so the holders without a process are known.
        gone = [holding for holding in walk.unseen if not exists(holding.pid)]
        for holding in walk.unseen:
            if holding not in gone:
                unknown[holding.gpu] = HIDDEN_PROCESSES
        unknown |= held.unknown
        found += self._missing(gone)
        named = NamedPods(found)
        if self._name_pods:
            named = self._name_pods(topology, found, containers)
        found = with_allocations(topology, self._reserved, named.processes)
        # The sort is stable, so descendants stay with their ancestors.
        found.sort(key=_by_gpu_and_holder)
        running = []
        with_memory = {}
        for process in found:
            facts = process.facts
            if facts.threads and not process.is_daemon:
                running.append(facts)
                if facts.holding is not None:
                    place = judge.vicinity(facts.gpus), process.placement
                    with_memory[facts.pid, facts.start] = place
        uid_of = {process.facts.pid: process.facts.uid for process in found}
        reserved = {**owners.noted_gpus(topology), **named.reserved}
        used = {*unknown, *_used_gpus(found)}
        balancing = text(f"{self._proc}/sys/kernel/numa_balancing")
        scan = Scan(
            time=now,
            seconds=0.0,
            processes=tuple(found),
            near=judge.near,
            unknown=unknown,
            reserved={gpu: owner for gpu, owner in reserved.items() if gpu not in used},
            skipped=walk.late.total() + held.skipped,
            # If a GPU's processes are not known, they may be in any tree: then move no tree.
            tree_tops={} if unknown else tree_tops(found, self._proc),
            # Not `boot`: the drivers may have taken seconds to answer since then.
            waits=self._waits.look(running, processes, since_boot()),
            users=self._users.look({uid for uid in uid_of.values() if uid is not None}),
            memory=self._memory.look(with_memory, uid_of),
            counts_waits=self._waits.counts,
            lost=held.lost,
            gone=held.gone,
            loads=held.loads,
            numa_balancing=int(balancing) if balancing.isdigit() else None,
            notices=tuple(named.notices),
            boot=boot,
        )
        return self._records.add(scan)

    def _missing(self, gone: Sequence[Holding]) -> Iterator[AuditedProcess]:
        """Yield the holders that had no process at two scans in a row; at one it may be a race."""
        names = {(holding.pid, holding.gpu) for holding in gone}
        for holding in gone:
            if (holding.pid, holding.gpu) in self._gone:
                yield missing_process(holding)
        self.has_unconfirmed = not names <= self._gone
        self._gone = names

    def _audited(
        self, judge: Judge, walk: ProcessWalk, owners: ProcessOwners
    ) -> Iterator[AuditedProcess]:
        """Yield the judgment of every process; children of a known daemon count as daemons."""
        daemons: set[int] = set()
        for facts in walk:
            of_daemon = facts.holding is None and facts.parent in daemons
            name = facts.pid, facts.start
            first_mask = self._first_masks.get(name) or facts.threads[0].mask
            self._first_masks[name] = first_mask
            with_mask = replace(facts, first_mask=first_mask)
            audited = judge.judge(with_mask, of_daemon=of_daemon)
            if audited.is_daemon:
                daemons.add(facts.pid)
                yield audited
            else:
                yield replace(audited, orphan=why_orphan(facts, owners))


def _used_gpus(processes: Iterable[AuditedProcess]) -> set[GpuKey]:
    gpus: set[GpuKey] = set()
    for process in processes:
        if not process.is_daemon:
            gpus.update(process.facts.gpus)
    return gpus


def _by_gpu_and_holder(process: AuditedProcess) -> tuple[GpuKey, int]:
    return process.facts.gpu, process.facts.holder or process.facts.pid


class ScanRecords:
    """The state of the GPUs that is kept from scan to scan."""

    def __init__(self, is_over: Callable[[int, int], bool]) -> None:
        """Take the function that says whether a process, by pid and start, has ended."""
        self._cpu_time = CpuTimeCounters(TICKS, is_over)
        self._letters: Mapping[GpuKey, str] = {}
        self._minute = 0  # the minute of the last letters in the history
        #: CPU time counters of the last hour, one reading a minute.
        self._readings: list[tuple[float, Mapping[GpuKey, CpuTime]]] = []
        self._since: dict[GpuKey, float] = {}  # when a mismatch was first seen

    def renumber(self, keys: Keys) -> None:
        """Move facts to the new index of each GPU that was renumbered."""
        self._cpu_time.renumber(keys)
        self._letters = moved(self._letters, keys)
        self._readings = [(at, moved(counters, keys)) for at, counters in self._readings]
        self._since = moved(self._since, keys)

    def add(self, scan: Scan) -> Scan:
        """Return the scan, completed from its own processes and from earlier scans."""
        found = scan.processes
        used = self._cpu_time.book(found, scan.near, scan.boot, scan.waits, scan.unknown)
        # A mismatch goes on while the processes of its GPU cannot be seen.
        far: set[GpuKey] = set()
        for process in found:
            if process.is_mismatch:
                far.update(process.facts.gpus)
        going_on = far | (self._since.keys() & scan.unknown.keys())
        self._since = {gpu: self._since.get(gpu, scan.time) for gpu in going_on}
        minute = int(scan.boot // MINUTE)
        self._letters = later_history(self._letters, minute - self._minute, states(scan))
        self._minute = minute
        counters = self._cpu_time.gpu_time
        if not self._readings or scan.boot - self._readings[-1][0] >= MINUTE:
            self._readings.append((scan.boot, counters))
        while scan.boot - self._readings[0][0] > HOUR * MINUTE:
            del self._readings[0]
        _, first = self._readings[0]
        return replace(
            scan,
            overlap=overlap(found),
            divided=divided(found),
            gpu_time=counters,
            used=used,
            last_hour={gpu: time - first.get(gpu, CpuTime()) for gpu, time in counters.items()},
            since={gpu: self._since[gpu] for gpu in far},
            history=self._letters,
            seconds=since_boot() - scan.boot,
        )


class CpuTimeCounters:
    """The CPU time counters of the GPUs; time that one scan could not see counts at a later one.

    A thread's time counts for the CPU on which it ran last. The time of ended threads and children
    is divided in the same proportion as the time of the process's living threads.
    """

    def __init__(self, ticks: int, is_over: Callable[[int, int], bool]) -> None:
        self._ticks = ticks  # in a second
        self._is_over = is_over
        #: By pid and start: the last facts of each process, and when they were read.
        self._before: dict[tuple[int, int], tuple[ProcessFacts, float]] = {}
        #: By the parent's pid: ticks of ended children that were counted while they ran.
        self._counted: Counter[int] = Counter()
        #: When the processes of each GPU were last known, in ticks since boot. A process that
        #: started later counts with all its CPU time.
        self._looked: dict[GpuKey, float] = {}
        self.gpu_time: Mapping[GpuKey, CpuTime] = {}  #: CPU time of each GPU's processes

    def renumber(self, keys: Keys) -> None:
        """Move counters to the new index of each GPU that was renumbered."""
        self._looked = moved(self._looked, keys)
        self.gpu_time = moved(self.gpu_time, keys)

    def book(
        self,
        processes: Sequence[AuditedProcess],
        gpus: Collection[GpuKey],
        boot: float,
        waits: Mapping[int, Waits],
        unknown: Collection[GpuKey] = (),
    ) -> Mapping[int, CpuTime]:
        """Add the CPU time since the last scan to the counters, and return it by pid.

        `boot`: when this scan began, in seconds since boot. `waits`: by pid. `unknown`: GPUs
        with processes that the scan did not see.
        """
        gpu_time = {**dict.fromkeys(gpus, CpuTime()), **self.gpu_time}
        throttled: set[tuple[GpuKey, str | None]] = set()
        self._count_ended(processes)
        used = {}
        for process in processes:
            facts = process.facts
            if process.is_daemon:
                continue
            time = self._used(process)
            of_process = waits.get(facts.pid)
            if of_process is not None:
                group = facts.gpu, of_process.limited
                without = 0.0 if group in throttled else of_process.throttled
                throttled.add(group)
                time += CpuTime(waited=of_process.waited or 0.0, throttled=without)
            used[facts.pid] = time
            gpu_time[facts.gpu] += time
        for process in processes:
            self._before[process.facts.pid, process.facts.start] = process.facts, boot
        for name, (facts, seen) in list(self._before.items()):
            if boot - seen >= REMEMBERED and facts.gpu not in unknown:
                del self._before[name]
        for gpu in gpus:
            if gpu not in unknown:
                self._looked[gpu] = boot * self._ticks
        self.gpu_time = gpu_time
        return used

    def _count_ended(self, processes: Sequence[AuditedProcess]) -> None:
        """Forget ended processes; note how much of their time has counted, by living ancestor.

        The kernel adds the time of an ended process to the parent that waits for it. Time that the
        last scan has counted must not count again.
        """
        here = {(process.facts.pid, process.facts.start) for process in processes}
        ended = {}
        parents = {}
        for pid, start in self._before.keys() - here:
            if self._is_over(pid, start):
                facts, _ = self._before.pop((pid, start))
                ended[pid] = facts
                parents[pid] = facts.parent
        for pid, facts in ended.items():
            *_, last = ancestors(pid, parents)
            spent = facts.cpu_ticks + facts.children_ticks + self._counted.pop(pid, 0)
            self._counted[parents[last]] += spent
        for pid in self._counted.keys() - {pid for pid, _ in self._before}:
            del self._counted[pid]

    def _used(self, process: AuditedProcess) -> CpuTime:
        """Return the CPU time of a process since it was last seen.

        A new process that started before the last look at its GPU counts only from now on.
        """
        facts = process.facts
        before, _ = self._before.get((facts.pid, facts.start), (None, 0.0))
        if before is None and facts.start < self._looked.get(facts.gpu, float("inf")):
            return CpuTime()
        own = facts.cpu_ticks
        of_children = facts.children_ticks
        if before is not None:
            own = max(0, own - before.cpu_ticks)
            of_children -= before.children_ticks
        counted = min(of_children, self._counted[facts.pid])
        self._counted[facts.pid] -= counted
        total = (own + of_children - counted) / self._ticks
        if process.near is None:
            return CpuTime(total)
        of_threads = ticks_since(facts, before)
        remote = 0
        for thread, ticks in zip(facts.threads, of_threads, strict=True):
            if thread.last_cpu not in process.near:
                remote += ticks
        if any(of_threads):
            return CpuTime(total, total * remote / sum(of_threads))
        far = len(facts.cpus - process.near) / max(1, len(facts.cpus))
        return CpuTime(total, total * far)
