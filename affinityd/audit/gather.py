"""Gathers the facts of the processes that use GPUs, and of their descendants, from /proc.

At any moment a process may vanish, and another process may get its pid.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from affinityd.audit.jobs import membership, membership_of_path, service
from affinityd.audit.model import SLURM, GpuHolders, Holding, ProcessFacts
from affinityd.cpuset import CpuSet, format_list, parse_list, parse_mask
from affinityd.linux.cgroup import Cgroups, mask_of
from affinityd.linux.files import content, environment_of
from affinityd.linux.processes import (
    ENDED,
    ProcessTable,
    Stat,
    Thread,
    cgroups_of,
    stat_of,
    thread_ids,
    thread_stat,
    uid_of,
)
from affinityd.linux.scheduling import TICKS
from affinityd.request.slurm_task import REMEDY as SLURM_REMEDY
from affinityd.topology.model import GpuKey

FAMILY = 1.0  #: seconds that a scan may spend on a holder and its descendants


class ProcessWalk:
    """One walk over the processes; afterwards it knows which processes were not reached."""

    def __init__(
        self, held: GpuHolders, deadline: float, processes: ProcessTable, *, family: float = FAMILY
    ) -> None:
        """Take holders, the deadline by time.monotonic(), and the seconds for each `family`."""
        self.late: Counter[GpuKey] = Counter()  #: processes that were not read before the deadline
        self.unseen: list[Holding] = []  #: holders without a process
        self._held = held
        self._end = deadline
        self._deadline = deadline
        self._processes = processes
        self._proc = processes.proc
        self._family_seconds = family
        # /proc/PID/cgroup → a function that makes facts; a job's processes have the same text.
        self._groups: dict[str, Callable[..., ProcessFacts]] = {}
        self._masks: dict[CpuSet, CpuSet] = {}  # threads share equal masks, since each is large
        self._known = {os.getpid(), *(holding.pid for holding in held.holdings)}

    def __iter__(self) -> Iterator[ProcessFacts]:
        """Yield every holder, followed by its descendants, depth first."""
        for holding in self._held.holdings:
            # A slow family must not use up the time of the others.
            self._deadline = min(self._end, time.monotonic() + self._family_seconds)
            yield from self._family(holding)

    def _family(self, holding: Holding) -> Iterator[ProcessFacts]:
        """Yield a holder, and its descendants that hold no GPU and have no nearer holder.

        If the process started after the source named the holder, its pid was reused.
        """
        waiting: list[tuple[int, Stat | None]] = [(holding.pid, None)]  # pid and parent of each
        while waiting:
            pid, parent = waiting.pop()
            if self._is_late():
                self.late[holding.gpu] += 1
                continue
            stat = stat_of(pid, self._proc)
            if stat is None:
                if parent is None:
                    self.unseen.append(holding)
                continue
            is_holder = parent is None and stat.start / TICKS <= self._held.asked
            is_child = parent is not None and stat.parent == parent.number and not stat.is_zombie
            if not is_holder and not is_child:
                continue
            facts = self._facts(stat, holding, holds=is_holder)
            if facts is not None:
                yield facts
                tids = [thread.tid for thread in facts.threads]
                children = self._processes.children(pid, tids)
                new = [child for child in children if child not in self._known]
                self._known.update(new)
                waiting += [(child, stat) for child in reversed(new)]

    def _facts(self, stat: Stat, holding: Holding, *, holds: bool) -> ProcessFacts | None:
        pid = stat.number
        tids = thread_ids(pid, self._proc)
        # A main thread that has ended is in no cgroup any more: cgroups v1 show the root cgroup.
        living = tids[1] if stat.state in ENDED and len(tids) > 1 else pid
        uid = uid_of(pid, self._proc)
        facts_in_group = self._group(living)
        threads = tuple(self._threads(pid, tids))
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
            cpu_ticks=again.cpu_ticks,
            children_ticks=again.children_ticks,
            session=stat.session,
            holder=None if holds else holding.pid,
            beside=holding.beside,
        )

    def _threads(self, pid: int, tids: Sequence[int]) -> Iterator[Thread]:
        for tid in tids:
            if self._is_late():
                return
            stat = thread_stat(pid, tid, self._proc)
            mask = mask_of(tid)
            if stat is not None and mask is not None:
                shared = self._masks.setdefault(mask, mask)
                yield Thread(tid, stat.name, stat.start, shared, stat.last_cpu, stat.cpu_ticks)

    def _group(self, pid: int) -> Callable[..., ProcessFacts]:
        cgroups = cgroups_of(pid, self._proc)
        if cgroups not in self._groups:
            root = os.fspath(Path(self._proc).parent)
            member = membership(cgroups, root)
            seen = Cgroups.of(pid, root)
            is_confined = True
            cpu_limit = None
            if member.scheduler == SLURM:
                chosen_for = membership_of_path(seen.confining or "")
                is_by_sluid = member.sluid is not None and member.sluid == chosen_for.sluid
                is_confined = is_by_sluid or chosen_for.job == member.job
            else:
                cpu_limit = seen.cpu_limit()
            self._groups[cgroups] = partial(
                ProcessFacts,
                cgroups=cgroups,
                membership=member,
                service=service(cgroups),
                cpuset=seen.cpuset,
                is_confined=is_confined,
                cpu_limit=cpu_limit,
            )
        return self._groups[cgroups]

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline


def one_process(pid: int) -> ProcessFacts | None:
    """Return the facts of a process, except its GPU; None: the process has ended."""
    held = GpuHolders((Holding(pid, ("", 0)),))
    unlimited = float("inf")
    return next(iter(ProcessWalk(held, unlimited, ProcessTable(), family=unlimited)), None)


def ticks_since(facts: ProcessFacts, before: ProcessFacts | None) -> list[int]:
    """Return the ticks of each thread since `before`; if that is None, since the thread began."""
    then = {}
    if before is not None:
        then = {(thread.tid, thread.start): thread.cpu_ticks for thread in before.threads}
    return [
        max(0, thread.cpu_ticks - then.get((thread.tid, thread.start), 0))
        for thread in facts.threads
    ]


def owner_of(facts: ProcessFacts, root: str = "") -> str | None:
    """Return what set a process's mask, or moved its threads; None: nothing, or unknown.

    Reading the environment may wait for a lock of the process's memory.
    """
    environ = environment_of(facts.pid, root) or {}
    main = facts.threads[0].mask
    ours: CpuSet = frozenset()
    slices: list[CpuSet] = []
    with suppress(ValueError):
        ours = parse_list(environ.get("AFFINITYD_CPULIST", ""))
    with suppress(ValueError):
        slices = [parse_mask(mask) for mask in environ.get("SLURM_CPU_BIND_LIST", "").split(",")]
    moved = [thread for thread in facts.threads[1:] if thread.mask != main]
    if moved:
        return _owner_of_threads(facts, moved, root)
    if ours and main == ours & (facts.cpuset or ours):  # the cpuset shrank, and so did the mask
        return "affinityd (AFFINITYD_CPULIST)"
    if main in slices:
        return f"Slurm (SLURM_CPU_BIND_LIST); {SLURM_REMEDY} gives near CPUs"
    if ours:
        return f"unknown (affinityd gave CPUs {format_list(ours)})"
    is_whole = facts.cpuset is None or main >= facts.cpuset
    if is_whole and facts.membership.scheduler == SLURM:
        return "Slurm (the cpuset of its job)"
    return None


def _owner_of_threads(facts: ProcessFacts, moved: Sequence[Thread], root: str) -> str:
    """Return what moved threads of a process: OpenMP, which binds each thread, or unknown."""
    main = facts.threads[0]
    maps = (content(f"{root}/proc/{facts.pid}/maps") or b"").decode(errors="replace")
    # The library of an OpenMP runtime: of GCC, Intel or LLVM.
    runtime = re.search(r"/(lib(?:gomp|iomp5|omp)\b[^/\n]*)$", maps, re.MULTILINE)
    for thread in moved:
        # OpenMP gives no thread more CPUs than the main thread has.
        if runtime and thread.name == main.name and not thread.mask > main.mask:
            return f"OpenMP ({runtime[1]} and its threads); to end that: OMP_PROC_BIND=false"
    if all(thread.mask > main.mask for thread in moved):
        return "unknown (only the main thread was moved)"
    return f"unknown (moved threads: {', '.join(sorted({thread.name for thread in moved}))})"
