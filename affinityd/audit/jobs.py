"""Which job a process belongs to, by its cgroups. An orphan holds a GPU and belongs to no job.

Source: proc_pid_stat(5).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache, cached_property, partial

from affinityd.audit.model import (
    KUBERNETES,
    SLURM,
    AuditedProcess,
    Holding,
    Job,
    Membership,
    ProcessFacts,
)
from affinityd.linux.cgroup import Cgroups, hierarchies, mask_of
from affinityd.linux.files import listed, text
from affinityd.linux.processes import (
    FIRST_USER,
    INIT,
    PROC,
    ROOT,
    ZOMBIE,
    ProcessTable,
    ancestors,
    cgroups_of,
    children_of,
    stat_of,
    status_of,
    title_of,
    uid_of,
)
from affinityd.topology.model import GpuKey, Topology
from affinityd.topology.nearness import UNKNOWN

# Only names given by root count: below a `user.slice` any user may name a cgroup. Sources: Slurm's
# src/plugins/cgroup/v1 and v2, cgroup.conf(5); the kubelet's pkg/kubelet/cm/
# cgroup_manager_linux.go; names of containers by containerd, CRI-O, Docker and Podman.

_HEX = "[0-9a-f]"
#: A pod's uid; for a static pod, the hash of its manifest.
_UID = rf"{_HEX}{{8}}(?:[-_]{_HEX}{{4}}){{3}}[-_]{_HEX}{{12}}|{_HEX}{{32}}"
_ID = rf"{_HEX}{{64}}"

# These patterns are for paths that end with a slash.
#: For a reader in a cgroup namespace, paths outside the namespace begin with `..`.
_beside = re.compile(r"(?:/\.\.)+(?=/)").match
_users = re.compile(r"/(?:user(?:-\d+)?\.slice|user@\d+\.service)(?=/)").search
#: Slurm 26.05 may name a job's folders by its SLUID.
_slurm = re.compile(
    r"/(?:slurm(?:_[^/]+)?/uid_\d+|(?:[^/]+_)?slurmstepd\.scope)"  # v1, v2
    r"/(?:job_(?P<job>[0-9]{1,10})|(?P<sluid>s[0-9A-Z]{13}))(?=/)"
    r"(?:/step_(?P<step>[^/]+))?"
).search
_title = re.compile(r"slurmstepd: \[(\d{1,10})\.").match
#: A pod's folder; with the systemd driver, a slice. containerd without this driver appends an id.
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

    The first line with a job counts: in a hybrid hierarchy some lines have no job. If a SLUID names
    the job's folder, a slurmstepd's title tells the job's number; without a slurmstepd the SLUID
    stands for the number.
    """
    in_container = Membership()
    for _, path in hierarchies(cgroup_text):
        member = membership_of_path(path)
        if member.sluid is not None:
            number = _number(cgroup_text, member.sluid, root)
            return replace(member, job=Job(SLURM, number or member.sluid))
        if member.job is not None:
            return member
        if in_container.container is None:
            in_container = member
    return in_container


def _number(cgroup_text: str, sluid: str, root: str) -> str | None:
    """Return a job's number, from root's slurmstepd in a step's cgroup: `slurmstepd: [7.batch]`.

    None: no step lives, or the title is `[7+1.0]`: a component of job 7, which has its own number.
    """
    proc = f"{root.rstrip('/')}/proc"
    for folder in Cgroups(cgroup_text, root).folders("cgroup2", ""):
        if not folder.endswith(f"/{sluid}"):
            continue
        for step in listed(folder):
            for pid in map(int, text(f"{folder}/{step}/slurm/cgroup.procs").split()):
                # Check the uid first: reading a title may wait for a lock of the process's memory.
                if uid_of(pid, proc) == ROOT and (title := _title(title_of(pid, proc))):
                    return title[1]
    return None


def service(cgroup_text: str) -> str | None:
    """Return systemd's service of a process, by its /proc/PID/cgroup; None: it is in no service."""
    for part in cgroup_text.replace("\n", "/").split("/"):
        if part.endswith(".service"):
            return part
    return None


def membership_of_path(path: str) -> Membership:
    """Return the job and container that one path names."""
    path = f"{path}/"
    beside = _beside(path)
    users = _users(path)
    of_root = path[: users.start() + 1] if users else path
    if slurm := _slurm(of_root):
        return Membership(
            Job(SLURM, slurm["job"]) if slurm["job"] else None,
            slurm["step"],
            sluid=slurm["sluid"],
            container=_container(of_root[slurm.end() :]),
        )
    for pod in _pods(of_root):
        # Paths outside the reader's namespace may lack upper folders, such as kubepods.
        if pod["slice"] or beside or "/kubepods/" in of_root[: pod.start() + 1]:
            return Membership(
                Job(KUBERNETES, (pod["slice"] or pod["folder"]).replace("_", "-")),
                container=pod["container"] or _container(of_root[pod.end() :]),
            )
    return Membership(container=_container(path))


def _container(path: str) -> str | None:
    """Return the id of the outermost container on the path."""
    found = _container_folder(path)
    return found["id"] if found else None


MOST_ABOVE = 8  #: how many ancestors are checked


def tree_tops(processes: Iterable[AuditedProcess], proc: str = PROC) -> Mapping[int, int]:
    """Return far holder → the topmost process that a pin should move with it, such as its server.

    The topmost process and all between are in the holder's process group, unlike a session's shell.
    Below the topmost process no process holds other GPUs. Most of its children lead to holders:
    otherwise the other children might be ranks without a GPU yet.
    """
    living = [process for process in processes if process.facts.threads]
    holders = [process for process in living if process.facts.holding is not None]
    if not any(holder.is_mismatch for holder in holders):
        return {}
    kin_of = cache(partial(_kin, proc=proc))
    gpus_below: defaultdict[int, set[frozenset[GpuKey]]] = defaultdict(set)
    leading: defaultdict[int, set[int]] = defaultdict(set)  # children, by pid
    for holder in holders:
        pid = holder.facts.pid
        for _ in range(MOST_ABOVE):
            parent, _ = kin_of(pid)
            gpus_below[parent].add(frozenset(holder.facts.gpus))
            leading[parent].add(pid)
            pid = parent
    tops = {}
    for holder in holders:
        if not holder.is_mismatch:
            continue
        pid = holder.facts.pid
        for _ in range(MOST_ABOVE):
            parent, traits = kin_of(pid)
            if kin_of(parent)[1] != traits or len(gpus_below[parent]) > 1:
                break
            if len(children_of(parent, proc)) > 2 * len(leading[parent]):
                break
            tops[holder.facts.pid] = parent
            pid = parent
    return tops


def _kin(pid: int, proc: str) -> tuple[int, tuple[object, ...]]:
    """Return a process's parent, and the process's traits; processes of a program have the same.

    An ended process, or a container's init, shares its traits with no other process.
    """
    stat = stat_of(pid, proc)
    if stat is None:
        return 0, (pid,)
    if status_of(pid, "NSpid", proc).split()[-1:] == [str(INIT)]:
        return stat.parent, (pid,)
    return stat.parent, (stat.group, uid_of(pid, proc), mask_of(pid))


GONE = "X"  #: a dead process's state, proc_pid_stat(5)


def why_orphan(facts: ProcessFacts, owners: ProcessOwners) -> str | None:
    """Return why a process that holds a GPU belongs to no living job; None: it is no orphan."""
    if facts.holding is None:
        return None
    if is_zombie(facts):
        return f"it has ended, and its parent (process {facts.parent}) has not waited for it"
    if facts.state == ZOMBIE:
        return "its main thread has ended, and other threads still run"
    job = facts.membership.job
    if job is not None and job.scheduler == SLURM:
        why = f"Slurm job {job.id} has ended: it has no slurmstepd any more"
        return None if owners.has_step(facts, job) else why
    if job or facts.membership.container or facts.service or facts.parent != INIT:
        return None
    return owners.why_not(facts.uid)


def is_zombie(facts: ProcessFacts) -> bool:
    """Return whether a process has ended, and its parent has not waited for it."""
    return facts.state == ZOMBIE and len(facts.threads) <= 1


def missing_process(holding: Holding) -> AuditedProcess:
    """Return the judgment of a process that is not in /proc."""
    facts = ProcessFacts(
        holding.pid,
        "?",  # its name, owner, start and parent are unknown
        None,
        0,
        0,
        GONE,
        holding.gpu,
        holding,
        beside=holding.beside,
    )
    why = "the driver lists it, and there is no such process"
    return AuditedProcess(facts, UNKNOWN, threads=(), orphan=why)


STEPD = "slurmstepd"  #: the program that runs each step of a job, as root, from start to end


class ProcessOwners:
    """Finds the owners of processes on a Slurm node; on other nodes a process needs no owner."""

    def __init__(self, processes: ProcessTable) -> None:
        self._processes = processes
        self._of_root = cache(self._programs_of_root)

    def has_step(self, facts: ProcessFacts, job: Job) -> bool:
        """Whether a slurmstepd runs the job, is an ancestor of the process, or may be hidden."""
        above = ancestors(facts.parent, self._processes.parents)
        is_seen = job in self._jobs or not self._of_root(STEPD).isdisjoint(above)
        return is_seen or not self._processes.has_all

    def noted_gpus(self, topology: Topology) -> dict[GpuKey, str]:
        """Return the GPUs of running jobs, each with its job, by the notes of slurm/prolog.sh."""
        keys = {f"{gpu.index}": gpu.key for gpu in topology.gpus if gpu.vendor == topology.vendor}
        notes = f"{self._processes.proc.removesuffix('proc')}run/affinityd-jobs"
        job_of: dict[GpuKey, str] = {}
        for number in listed(notes):
            if Job(SLURM, number) in self._jobs:
                for index in text(f"{notes}/{number}").removeprefix("gpus=").split(","):
                    if index in keys:
                        job_of[keys[index]] = f"slurm {number}"
        return job_of

    def why_not(self, uid: int | None) -> str | None:
        """Return why a user's process has no owner; None: it has an owner, or that is unknown."""
        if uid is None or uid < FIRST_USER or not self._processes.has_all:
            return None
        if uid in self._users or not self._of_root("slurmd"):
            return None
        return (
            f"its parent has ended, its user (uid {uid}) has no Slurm job on this node, and it is "
            "in no container or service"
        )

    def _programs_of_root(self, name: str) -> frozenset[int]:
        """Return the pids of root's programs of a name; other users' programs may have it, too."""
        pids = set()
        for pid, stat in self._processes.by_pid.items():
            is_named = stat.name == name and not stat.is_zombie
            if is_named and uid_of(pid, self._processes.proc) == ROOT:
                pids.add(pid)
        return frozenset(pids)

    @cached_property
    def _jobs(self) -> frozenset[Job]:
        """The jobs that slurmstepds name in cgroup paths or titles (`slurmstepd: [7.batch]`)."""
        proc = self._processes.proc
        root = proc.removesuffix("proc")
        jobs = set()
        for pid in self._of_root(STEPD):
            job = membership(cgroups_of(pid, proc), root).job
            if job is not None:
                jobs.add(job)
            _, _, title = title_of(pid, proc).rpartition("[")
            jobs.add(Job(SLURM, title.partition(".")[0]))
        return frozenset(jobs)

    @cached_property
    def _users(self) -> Collection[int | None]:
        uids = set()
        for pid, stat in self._processes.by_pid.items():
            if stat.parent in self._of_root(STEPD) and not stat.is_zombie:
                uids.add(uid_of(pid, self._processes.proc))
        return uids
