"""Orphans: processes that hold a GPU and belong to no job any more.

Source: proc_pid_stat(5).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache, cached_property

from affinityd.audit.gather import is_slurms, membership
from affinityd.audit.judge import FIRST_USER
from affinityd.audit.model import SLURM, AuditedProcess, Holding, Job, ProcessFacts
from affinityd.linux.processes import (
    INIT,
    ROOT,
    ZOMBIE,
    ProcessTable,
    ancestors,
    cgroups_of,
    title_of,
    uid_of,
)
from affinityd.topology.nearness import UNKNOWN

GONE = "X"  #: state of a process that is dead, proc_pid_stat(5)

HAS_ENDED = "it has ended, and its parent (process {parent}) has not waited for it"
HEADLESS = "its main thread has ended, and other threads still run"
OF_ENDED_JOB = "Slurm job {job} has ended: it has no slurmstepd any more"
NOT_THERE = "the driver lists it, and there is no such process"


def why_orphan(facts: ProcessFacts, owners: ProcessOwners) -> str | None:
    """Return why a process that holds a GPU belongs to no living job; None: it does."""
    if facts.holding is None:
        return None
    if facts.state == ZOMBIE:
        return HAS_ENDED.format(parent=facts.parent) if has_ended(facts) else HEADLESS
    job = facts.membership.job
    if job is not None and is_slurms(job):
        return None if owners.has_step(facts, job) else OF_ENDED_JOB.format(job=job.id)
    is_kept = job or facts.membership.container or facts.service or facts.parent != INIT
    return None if is_kept else owners.why_not(facts.uid)


def has_ended(facts: ProcessFacts) -> bool:
    """Return whether a process runs no more, and its parent has not waited for it."""
    return facts.state == ZOMBIE and len(facts.threads) <= 1


def missing_process(holding: Holding) -> AuditedProcess:
    """Return the judgment of a process that is not in /proc."""
    pid, gpu = holding.pid, holding.gpu  # neither its name, owner, start nor parent is known
    facts = ProcessFacts(pid, "?", None, 0, 0, GONE, gpu, holding, beside=holding.beside)
    return AuditedProcess(facts, UNKNOWN, threads=(), orphan=NOT_THERE)


# The owners of a machine's processes where Slurm runs the jobs, by /proc. Elsewhere any process may
# be meant to run on: one that was started with nohup, and whose user has logged out, is no orphan.
#
# Source: Slurm's src/slurmd/slurmstepd/slurmstepd_job.c for slurmstepd's title.

SLURMD = "slurmd"  #: Slurm's daemon of a node that runs jobs
STEPD = "slurmstepd"  #: runs each step of a job, as root, from its beginning to its end

NO_JOB = (
    "its parent has ended, its user (uid {uid}) has no Slurm job on this node, and "
    "it is in no container or service"
)


class ProcessOwners:
    """Finds the owners of one scan's processes."""

    def __init__(self, processes: ProcessTable) -> None:
        self._processes = processes
        self._of_root = cache(self._programs_of_root)

    def has_step(self, facts: ProcessFacts, job: Job) -> bool:
        """Whether a slurmstepd is an ancestor of a process, or of its job, or may be hidden."""
        above = ancestors(facts.parent, self._processes.parents)
        is_seen = job in self._jobs or not self._of_root(STEPD).isdisjoint(above)
        return is_seen or not self._processes.has_all

    def why_not(self, uid: int | None) -> str | None:
        """Return why a process of a user has no owner; None: it has one, or none is known.

        Accounts of the system need no job, and where /proc hides other users' processes (hidepid)
        jobs cannot be seen.
        """
        if uid is None or uid < FIRST_USER or not self._processes.has_all:
            return None
        if not self._of_root(SLURMD):
            return None
        return None if uid in self._users else NO_JOB.format(uid=uid)

    def _programs_of_root(self, name: str) -> frozenset[int]:
        """Return the pids of root's programs of a name: any user may give one that name."""
        living = (stat for stat in self._processes.by_pid.values() if not stat.is_zombie)
        named = (stat.number for stat in living if stat.name == name)
        return frozenset(pid for pid in named if uid_of(pid, self._processes.proc) == ROOT)

    @cached_property
    def _jobs(self) -> frozenset[Job]:
        """The jobs in a slurmstepd's cgroup path or title: `slurmstepd: [7.batch]`."""
        proc = self._processes.proc
        root = proc.removesuffix("proc")
        cgroups = (membership(cgroups_of(pid, proc), root).job for pid in self._of_root(STEPD))
        titles = (title_of(pid, proc).rpartition("[")[2] for pid in self._of_root(STEPD))
        of_titles = (Job(SLURM, title.partition(".")[0]) for title in titles)
        return frozenset((*(job for job in cgroups if job is not None), *of_titles))

    @cached_property
    def _users(self) -> Collection[int | None]:
        """The uids of the processes that a slurmstepd has started."""
        by_pid, proc = self._processes.by_pid, self._processes.proc
        started = (stat for stat in by_pid.values() if stat.parent in self._of_root(STEPD))
        return {uid_of(stat.number, proc) for stat in started if not stat.is_zombie}
