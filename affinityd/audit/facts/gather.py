"""Gathers the facts of the processes that use GPUs, and of their descendants, from /proc.

A DataLoader's workers hold no GPU, but make its samples. At any moment a process may vanish, and
another get its pid.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from affinityd.audit.facts.holding import GpuHolders, GpuKey, Holding
from affinityd.audit.facts.membership import chosen_for, is_slurms, membership, service
from affinityd.audit.facts.process import ProcessFacts
from affinityd.cpuset import CpuSet
from affinityd.linux.cgroup import Cgroups
from affinityd.linux.processes import (
    ENDED,
    ProcessTable,
    Stat,
    Thread,
    cgroups_of,
    mask_of,
    stat_of,
    thread_ids,
    thread_stat,
    uid_of,
)

FAMILY = 1.0  #: seconds that a holder and its descendants may take in a scan

TICKS = os.sysconf("SC_CLK_TCK")  #: of the kernel's clock in a second


class ProcessWalk:
    """One walk over the processes; at its end it knows which it did not reach."""

    def __init__(
        self,
        held: GpuHolders,
        deadline: float,
        processes: ProcessTable,
        *,
        family: float = FAMILY,
    ) -> None:
        """Take the holders of GPUs, and the end of the walk, by time.monotonic().

        `processes`: where the children are looked up. `family`: seconds that a holder and its
        descendants may take.
        """
        self.late: Counter[GpuKey] = Counter()  #: processes not looked at, as time was up
        self.unseen: list[Holding] = []  #: holders without a process
        self._held = held
        self._end = self._deadline = deadline
        self._processes = processes
        self._proc = processes.proc
        # By cgroups, which a job's processes share: makes the facts of one of them.
        self._groups: dict[str, Callable[..., ProcessFacts]] = {}
        # All threads have few different masks: one set a thread would keep the garbage collector
        # busy, while every plan waits.
        self._masks: dict[CpuSet, CpuSet] = {}
        self._family_seconds = family
        self._known = {os.getpid()}

    def __iter__(self) -> Iterator[ProcessFacts]:
        """Yield every holder, each followed by its descendants, each by its own."""
        self._known.update(holding.pid for holding in self._held.holdings)
        for holding in self._held.holdings:
            # One family that takes long is not to keep the others from being looked at.
            self._deadline = min(self._end, time.monotonic() + self._family_seconds)
            yield from self._family(holding)

    def _family(self, holding: Holding) -> Iterator[ProcessFacts]:
        """Yield a holder, and its descendants that hold no GPU and have no nearer holder."""
        waiting: list[tuple[int, Stat | None]] = [(holding.pid, None)]  # each with its parent
        while waiting:
            pid, parent = waiting.pop()
            if self._is_late():
                self.late[holding.gpu] += 1
                continue
            stat = stat_of(pid, self._proc)
            if stat is None and parent is None:
                self.unseen.append(holding)
            if stat is not None and self._is_meant(stat, parent):
                facts = self._facts(stat, holding, holds=parent is None)
                if facts is not None:
                    yield facts
                    waiting += [(child, stat) for child in reversed(self._new_children(facts))]

    def _facts(self, stat: Stat, holding: Holding, *, holds: bool) -> ProcessFacts | None:
        """Return a process's facts; None if it has ended, or the time is over.

        `holds`: it is the holder itself, not a descendant.
        """
        pid = stat.number
        # A main thread that has ended is in no cgroup any more: the root's, by cgroups of v1.
        has_ended = stat.state in ENDED
        living = next(iter(thread_ids(pid, self._proc)[1:]), pid) if has_ended else pid
        uid, facts_in_group = uid_of(pid, self._proc), self._group(living)
        threads = tuple(self._threads(pid))
        again = stat_of(pid, self._proc)
        if self._is_late():
            self.late[holding.gpu] += 1
            return None
        if not threads or again is None or again.start != stat.start:
            return None
        return facts_in_group(
            pid=pid,
            name=stat.name,
            uid=uid,
            start=stat.start,
            parent=stat.parent,
            state=again.state,
            gpu=holding.gpu,
            holding=holding if holds else None,
            threads=threads,
            session=stat.session,
            holder=None if holds else holding.pid,
            beside=holding.beside,
        )

    def _threads(self, pid: int) -> Iterator[Thread]:
        for tid in thread_ids(pid, self._proc):
            if self._is_late():
                return
            stat, mask = thread_stat(pid, tid, self._proc), mask_of(tid)
            if stat is not None and mask is not None:
                shared = self._masks.setdefault(mask, mask)
                yield Thread(tid, stat.name, stat.start, shared, stat.last_cpu, stat.cpu_ticks)

    def _new_children(self, facts: ProcessFacts) -> list[int]:
        children = self._processes.children(facts.pid, [thread.tid for thread in facts.threads])
        found = [child for child in children if child not in self._known]
        self._known.update(found)
        return found

    def _group(self, pid: int) -> Callable[..., ProcessFacts]:
        cgroups = cgroups_of(pid, self._proc)
        if cgroups not in self._groups:
            root = os.fspath(Path(self._proc).parent)
            its, seen = membership(cgroups), Cgroups.of(pid, root)
            self._groups[cgroups] = partial(
                ProcessFacts,
                cgroups=cgroups,
                membership=its,
                service=service(cgroups),
                cpuset=seen.cpuset,
                is_confined=not is_slurms(its.job) or chosen_for(seen.confining) == its.job,
                cpu_limit=None if is_slurms(its.job) else seen.cpu_limit(),
            )
        return self._groups[cgroups]

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _is_meant(self, stat: Stat, parent: Stat | None) -> bool:
        """Whether it is the named process, and not another with its pid.

        A holder has started before it was named, a child has that parent. A zombie runs nothing.
        """
        if parent is None:
            return stat.start / TICKS <= self._held.asked
        return stat.parent == parent.number and not stat.is_zombie
