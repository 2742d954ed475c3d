"""One scan: find the holders of GPUs, gather facts, judge them, measure their CPU time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from affinityd.audit import orphans
from affinityd.audit.allocations import with_allocations
from affinityd.audit.cpu_time import CpuTimeCounters
from affinityd.audit.facts.gather import TICKS, ProcessWalk
from affinityd.audit.facts.holding import GpuHolders, GpuKey
from affinityd.audit.facts.process import ProcessFacts
from affinityd.audit.judge import Judge
from affinityd.audit.model import AuditedProcess, NamedPods, Scan
from affinityd.audit.orphans import IdleTimes
from affinityd.audit.overlap import divided, overlap
from affinityd.audit.owners import ProcessOwners
from affinityd.cpuset import CpuSet
from affinityd.grouping import Recent
from affinityd.linux.files import text
from affinityd.linux.processes import PROC, ProcessTable, exists, since_boot
from affinityd.topology.model import Topology

READING = 5.0  #: seconds that a scan may read /proc

LATE = "{number} of its processes were not scanned: the time limit was reached"
HIDDEN = "some of its processes are hidden here, by hidepid= of /proc: run this as root"

#: The main thread's mask of each process when first seen, by pid and start.
FirstMasks = Recent[tuple[int, int], CpuSet]


#: Returns the processes, with what kubelet gave their containers.
NamePods = Callable[[Topology, list[AuditedProcess]], NamedPods]


def unnamed(_topology: Topology, found: list[AuditedProcess]) -> NamedPods:
    """Return the processes as they are: kubelet is not asked."""
    return NamedPods(found)


#: Returns the measured ratios of GPUs, as `Scan.ratios` has them, and notices for people.
Measured = Callable[[Topology], tuple[Mapping[GpuKey, Mapping[int, float]], tuple[str, ...]]]


def unmeasured(_topology: Topology) -> tuple[Mapping[GpuKey, Mapping[int, float]], tuple[str, ...]]:
    """Return no ratios: no measurement is read."""
    return {}, ()


class HolderSource(Protocol):
    """A source of the processes that use GPUs."""

    def held(self, topology: Topology) -> GpuHolders:
        """Return which processes use the GPUs now, and of which GPUs that is unknown."""


class Auditor:
    """Scans the processes repeatedly, and keeps some facts from scan to scan."""

    def __init__(
        self,
        holders: HolderSource,
        proc: str = PROC,
        *,
        reserved: CpuSet = frozenset(),
        name_pods: NamePods = unnamed,
        measured: Measured = unmeasured,
    ) -> None:
        """Take the source of holders, the path of /proc, and the CPUs that no plan gives.

        `name_pods` adds the facts of kubelet, `measured` those of a measurement.
        """
        self._holders = holders
        self._name_pods = name_pods
        self._measured = measured
        self._proc = proc
        self._cpu_time = CpuTimeCounters(TICKS)
        self._idle = IdleTimes()
        self._missing = orphans.MissingProcesses()
        self._first_masks = FirstMasks()
        self._reserved = reserved
        self._judged_by: Judge | None = None

    def scan(self, topology: Topology) -> Scan:
        """Scan once, within the time of the holders' query and READING seconds.

        Most of that is waiting for the kernel.
        """
        now, boot = time.time(), since_boot()
        judge = self._judge(topology)
        self._first_masks.begin(boot)
        processes = ProcessTable(self._proc)
        held = self._holders.held(topology)
        walk = ProcessWalk(held, time.monotonic() + READING, processes)
        judged = [*self._audited(judge, walk, ProcessOwners(processes))]
        # The walk is over: the processes it has not seen are known.
        judged += map(orphans.missing_process, self._missing.found(walk.unseen, held.asked))
        named = self._name_pods(topology, judged)
        found = with_allocations(topology, self._reserved, named.processes)
        # Stable, so that descendants stay with those that have started them.
        found.sort(key=lambda it: (it.facts.gpu, it.facts.holder or it.facts.pid))
        near, balancing = judge.near, text(f"{self._proc}/sys/kernel/numa_balancing")
        unknown = {**_missed(walk), **held.unknown}
        ratios, remarks = self._measured(topology)
        self._cpu_time.book(found, near, boot)
        return Scan(
            time=now,
            seconds=since_boot() - boot,
            processes=tuple(found),
            near=near,
            unknown=unknown,
            overlap=overlap(found),
            skipped=walk.late.total() + held.skipped,
            divided=divided(found),
            late=walk.late,
            gpu_time=self._cpu_time.gpu_time,
            job_time=self._cpu_time.job_time,
            since=self._cpu_time.note(found, unknown, now),
            numa_balancing=int(balancing) if balancing.isdigit() else None,
            notices=(*held.notices, *named.notices, *remarks),
            kubelet=named.kubelet,
            idle=self._idle.seconds(found, boot),
            ratios=ratios,
            boot=boot,
        )

    def _judge(self, topology: Topology) -> Judge:
        """Return the judge for a topology, which is another object when it was read again."""
        if self._judged_by is None or self._judged_by.topology is not topology:
            before = self._judged_by.topology.gpus if self._judged_by else ()
            there = {(gpu.key, gpu.pci_bus_id) for gpu in topology.gpus}
            for gpu in before:  # one may have left, and others have their numbers now
                if (gpu.key, gpu.pci_bus_id) not in there:
                    self._cpu_time.forget(gpu.key)
            self._judged_by = Judge(topology)
        return self._judged_by

    def _audited(
        self, judge: Judge, walk: ProcessWalk, owners: ProcessOwners
    ) -> Iterator[AuditedProcess]:
        """Yield the judgment of every process; children of a known daemon belong to it."""
        daemons: set[int] = set()
        for facts in walk:
            of_daemon = facts.holding is None and facts.parent in daemons
            audited = judge.judge(with_first_mask(facts, self._first_masks), of_daemon=of_daemon)
            if audited.is_daemon:
                daemons.add(facts.pid)
            why = None if audited.is_daemon else orphans.why(facts, owners)
            yield audited if why is None else replace(audited, orphan=why)


def _missed(walk: ProcessWalk) -> dict[GpuKey, str]:
    """Return each GPU that has processes which were not seen, and why they were not."""
    late = {gpu: LATE.format(number=number) for gpu, number in walk.late.items()}
    return late | {it.gpu: HIDDEN for it in walk.unseen if exists(it.pid)}


def with_first_mask(facts: ProcessFacts, known: FirstMasks) -> ProcessFacts:
    """Return a process's facts, with the first mask of its main thread."""
    key = facts.pid, facts.start
    known[key] = first = known.get(key) or facts.threads[0].mask
    return replace(facts, first_mask=first)
