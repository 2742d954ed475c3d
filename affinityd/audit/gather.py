"""Gathers the facts of the processes that use GPUs, and of their descendants, from /proc.

A DataLoader's workers hold no GPU, but make its samples. At any moment a process may vanish, and
another get its pid.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from affinityd.audit.model import (
    KUBERNETES,
    SLURM,
    GpuHolders,
    GpuKey,
    Holding,
    Job,
    Membership,
    ProcessFacts,
)
from affinityd.cpuset import CpuSet
from affinityd.linux.cgroup import Cgroups, hierarchies
from affinityd.linux.files import listed, text
from affinityd.linux.processes import (
    ENDED,
    ROOT,
    ProcessTable,
    Stat,
    Thread,
    cgroups_of,
    mask_of,
    stat_of,
    thread_ids,
    thread_stat,
    title_of,
    uid_of,
)

FAMILY = 1.0  #: seconds that a holder and its descendants may take in a scan

TICKS = os.sysconf("SC_CLK_TCK")  #: of the kernel's clock in a second


class ProcessWalk:
    """One walk over the processes; at its end it knows which it did not reach."""

    def __init__(
        self, held: GpuHolders, deadline: float, processes: ProcessTable, *, family: float = FAMILY
    ) -> None:
        """Take the holders of GPUs, the end of the walk, by time.monotonic(), and all processes.

        `family`: seconds that a holder and its descendants may take.
        """
        self.late: Counter[GpuKey] = Counter()  #: processes not looked at, as time was up
        self.unseen: list[Holding] = []  #: holders without a process
        self._held, self._end, self._deadline = held, deadline, deadline
        self._processes, self._proc = processes, processes.proc
        self._family_seconds = family
        # By cgroups, which a job's processes share: makes the facts of one of them.
        self._groups: dict[str, Callable[..., ProcessFacts]] = {}
        self._masks: dict[CpuSet, CpuSet] = {}  # few are different, and each is large: one object
        self._known = {os.getpid(), *(holding.pid for holding in held.holdings)}

    def __iter__(self) -> Iterator[ProcessFacts]:
        """Yield every holder, each followed by its descendants, each by its own."""
        for holding in self._held.holdings:
            # One family that takes long is not to keep the others from being looked at.
            self._deadline = min(self._end, time.monotonic() + self._family_seconds)
            yield from self._family(holding)

    def _family(self, holding: Holding) -> Iterator[ProcessFacts]:
        """Yield a holder, and its descendants that hold no GPU and have no nearer holder.

        A holder has started before it was named, else another process has its pid.
        """
        waiting: list[tuple[int, Stat | None]] = [(holding.pid, None)]  # each with its parent
        while waiting:
            pid, parent = waiting.pop()
            if self._is_late():
                self.late[holding.gpu] += 1
                continue
            stat = stat_of(pid, self._proc)
            if stat is None:
                self.unseen += [holding] if parent is None else []
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
        """Return a process's facts; None if it has ended, or the time is over.

        `holds`: it is the holder itself, not a descendant.
        """
        pid, tids = stat.number, thread_ids(stat.number, self._proc)
        # A main thread that has ended is in no cgroup any more: the root's, by cgroups of v1.
        living = tids[1] if stat.state in ENDED and len(tids) > 1 else pid
        uid, facts_in_group = uid_of(pid, self._proc), self._group(living)
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
            session=stat.session,
            holder=None if holds else holding.pid,
            beside=holding.beside,
        )

    def _threads(self, pid: int, tids: Sequence[int]) -> Iterator[Thread]:
        for tid in tids:
            if self._is_late():
                return
            stat, mask = thread_stat(pid, tid, self._proc), mask_of(tid)
            if stat is not None and mask is not None:
                shared = self._masks.setdefault(mask, mask)
                yield Thread(tid, stat.name, stat.start, shared, stat.last_cpu, stat.cpu_ticks)

    def _group(self, pid: int) -> Callable[..., ProcessFacts]:
        cgroups = cgroups_of(pid, self._proc)
        if cgroups not in self._groups:
            root = os.fspath(Path(self._proc).parent)
            its, seen = membership(cgroups, root), Cgroups.of(pid, root)
            chosen_for = _of_path(seen.confining or "")
            is_by_sluid = its.sluid is not None and its.sluid == chosen_for.sluid
            is_chosen = is_by_sluid or chosen_for.job == its.job
            self._groups[cgroups] = partial(
                ProcessFacts,
                cgroups=cgroups,
                membership=its,
                service=service(cgroups),
                cpuset=seen.cpuset,
                is_confined=not is_slurms(its.job) or is_chosen,
                cpu_limit=None if is_slurms(its.job) else seen.cpu_limit(),
            )
        return self._groups[cgroups]

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline


def one_process(pid: int) -> ProcessFacts | None:
    """Return the facts of a process, of no GPU in particular; None: it has ended."""
    held, unlimited = GpuHolders((Holding(pid, ("", 0)),)), float("inf")
    return next(iter(ProcessWalk(held, unlimited, ProcessTable(), family=unlimited)), None)


ThreadName = tuple[int, int]  #: tid and start: one thread for good


def ticks_spent(
    facts: ProcessFacts, near: CpuSet | None, before: Mapping[ThreadName, int], since: float
) -> tuple[int, int]:
    """Return the ticks that a process's threads spent, and those of them far from its GPUs.

    `before`: the ticks of the threads at the last scan. All ticks of a new thread count if it
    started after `since`, clock ticks since boot; else they are unknown, and none counts.
    """
    total = remote = 0
    for thread in facts.threads:
        unknown = thread.cpu_ticks if thread.start < since else 0
        used = max(0, thread.cpu_ticks - before.get((thread.tid, thread.start), unknown))
        total += used
        if near is not None and thread.last_cpu not in near:
            remote += used
    return total, remote


def ticks_of(processes: Iterable[ProcessFacts]) -> dict[ThreadName, int]:
    """Return the ticks of every thread so far."""
    return {
        (thread.tid, thread.start): thread.cpu_ticks
        for facts in processes
        for thread in facts.threads
    }


# The job and container of a process, by the paths of its cgroups.
#
# Only names by root count: below a `user.slice` any user may name a cgroup, and
# elsewhere a job's number counts in Slurm's own folders alone.
#
# Sources: cgroups(7); Slurm's src/plugins/cgroup/v1 and v2, cgroup.conf(5) "CgroupSlice" and
# "CgroupJobIdPaths"; the kubelet's pkg/kubelet/cm/cgroup_manager_linux.go (a pod's name by either
# driver), containerd's, CRI-O's, Docker's and Podman's names of a container; cgroup_namespaces(7).

_HEX = "[0-9a-f]"
#: A pod's uid; of a static pod, the hash of its manifest.
_UID = rf"{_HEX}{{8}}(?:[-_]{_HEX}{{4}}){{3}}[-_]{_HEX}{{12}}|{_HEX}{{32}}"
_ID = rf"{_HEX}{{64}}"

# For paths that end with a slash: a part that begins with one is a folder's full name.

#: To a reader in a cgroup namespace, paths outside of it begin with `..`.
_beside = re.compile(r"(?:/\.\.)+(?=/)").match
_users = re.compile(r"/(?:user(?:-\d+)?\.slice|user@\d+\.service)(?=/)").search
#: A job of Slurm 26.05 may go by its SLUID.
_slurm = re.compile(
    r"/(?:slurm(?:_[^/]+)?/uid_\d+|(?:[^/]+_)?slurmstepd\.scope)"  # v1, v2
    r"/(?:job_(?P<job>[0-9]{1,10})|(?P<sluid>s[0-9A-Z]{13}))(?=/)"
    r"(?:/step_(?P<step>[^/]+))?"
).search
_title = re.compile(r"slurmstepd: \[(\d{1,10})\.").match
#: The pod's slice of the systemd driver; containerd without systemd puts its container behind it.
_pods = re.compile(
    rf"/(?:(?:kubelet-)?kubepods(?:-burstable|-besteffort|-system)?-pod(?P<slice>{_UID})\.slice"
    rf"(?::[^:/]+:(?P<container>{_ID}))?|pod(?P<folder>{_UID}))(?=/)"
).finditer
#: A conmon is not in the container that it watches.
_container_folder = re.compile(
    rf"/(?![^/]*conmon-)(?:[a-z]+-)*(?P<id>{_ID})(?:\.scope)?(?=/)"
).search


def membership(cgroup_text: str, root: str = "/") -> Membership:
    """Return the job and container of a process, by its /proc/PID/cgroup.

    The first line with a job counts: in a hybrid hierarchy some lines have none. A process in
    a container that no scheduler started has a container and no job. The number of a job that goes
    by its SLUID is read from a slurmstepd's title; where none says it, the SLUID names the job.
    `root`: of the machine's files.
    """
    found = [_of_path(path) for _, path in hierarchies(cgroup_text)]
    in_a_container = next((it for it in found if it.container), Membership())
    its = next((it for it in found if it.job or it.sluid), in_a_container)
    if its.sluid is None:
        return its
    return replace(its, job=Job(SLURM, _number(cgroup_text, its.sluid, root) or its.sluid))


def _number(cgroup_text: str, sluid: str, root: str) -> str | None:
    """Return a job's number, by root's slurmstepd in the cgroup of a step: `slurmstepd: [7.batch]`.

    None: no step lives, or the job is a component of a heterogeneous one. `[7+1.0]` has the first
    component's number, not its own. Source: Slurm's src/slurmd/slurmstepd/slurmstepd.c.
    """
    proc = f"{root.rstrip('/')}/proc"
    for folder in Cgroups(cgroup_text, root).folders("cgroup2", ""):
        steps = listed(folder) if folder.endswith(f"/{sluid}") else ()
        pids = (text(f"{folder}/{step}/slurm/cgroup.procs").split() for step in steps)
        for pid in map(int, chain.from_iterable(pids)):
            # Its uid first: to read a title may wait for a lock of the process's memory.
            title = _title(title_of(pid, proc)) if uid_of(pid, proc) == ROOT else None
            if title:
                return title[1]
    return None


def service(cgroup_text: str) -> str | None:
    """Return systemd's service of a process, by its /proc/PID/cgroup; None: it is of none."""
    parts = (part for line in cgroup_text.split("\n") for part in line.split("/"))
    return next((part for part in parts if part.endswith(".service")), None)


def is_slurms(job: Job | None) -> bool:
    """Whether Slurm has started a job."""
    return job is not None and job.scheduler == SLURM


def _of_path(path: str) -> Membership:
    path = f"{path}/"
    beside, users = _beside(path), _users(path)
    of_root = path[: users.start() + 1] if users else path
    if slurm := _slurm(of_root):
        return Membership(
            Job(SLURM, slurm["job"]) if slurm["job"] else None,
            slurm["step"],
            sluid=slurm["sluid"],
            container=_container(of_root[slurm.end() :]),
            outside=_container(of_root[: slurm.start() + 1]),
        )
    for pod in _pods(of_root):
        # Paths outside of the reader's namespace may lack upper folders, such as kubepods.
        if pod["slice"] or beside or "/kubepods/" in of_root[: pod.start() + 1]:
            return Membership(
                Job(KUBERNETES, (pod["slice"] or pod["folder"]).replace("_", "-")),
                container=pod["container"] or _container(of_root[pod.end() :]),
            )
    return Membership(container=_container(path))


def _container(path: str) -> str | None:
    """Return the outermost container's id; containers inside it do not count."""
    found = _container_folder(path)
    return found["id"] if found else None
