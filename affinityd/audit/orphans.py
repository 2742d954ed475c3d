"""Processes that hold a GPU and belong to no living job: what people hunt with `fuser -v`.

Sources: proc_pid_stat(5); Slurm's src/slurmd/slurmstepd/slurmstepd_job.c for slurmstepd's title.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

from affinityd.audit.membership import membership
from affinityd.audit.model import SLURM, AuditedProcess, Holding, Job, Membership, ProcessFacts
from affinityd.audit.owners import STEPD, ProcessOwners
from affinityd.linux.processes import (
    INIT,
    PROC,
    ROOT,
    cgroups_of,
    everyone,
    stat_of,
    title_of,
    uid_of,
)
from affinityd.linux.procstat import ZOMBIE, Stat
from affinityd.topology.nearness import UNKNOWN

GONE = "X"  #: state of a process that is dead, proc_pid_stat(5)

HAS_ENDED = "it has ended, and whoever started it (process {parent}) has not noticed"
HEADLESS = "its main thread has ended, and others have not"
OF_ENDED_JOB = "Slurm's job {job} has ended: it has no slurmstepd any more"
NOT_THERE = "the driver names it, and there is no such process"


def service(cgroups: str) -> str | None:
    """Return systemd's service of a process, by its /proc/PID/cgroup; None: it is of none."""
    parts = (part for line in cgroups.split("\n") for part in line.split("/"))
    return next((part for part in parts if part.endswith(".service")), None)


class SlurmSteps:
    """Which of Slurm's jobs have a slurmstepd, as far as anybody asks.

    Who has none above it makes us look at every process of the machine: once a scan at most, and
    never again for a process whose job was found to be over.
    """

    def __init__(self, proc: str = PROC) -> None:
        """Take where the processes are."""
        self._proc = proc
        self._over: set[tuple[int, int]] = set()  # processes by pid and start
        self._met: set[tuple[int, int]] = set()  # those in this scan
        self._found: dict[Job, int] = {}  # the pid of a slurmstepd of each job
        self._has_swept = False

    def begin(self) -> None:
        """Begin another scan."""
        self._over &= self._met
        self._met = set()
        self._has_swept = False

    def may_run(self, facts: ProcessFacts, job: Job) -> bool:
        """Return whether a slurmstepd is an ancestor of a process, or of its job, or is hidden."""
        process = facts.pid, facts.start
        self._met.add(process)
        if process in self._over:
            return False
        runs = self._is_above(facts.parent) or self._are_hidden or self._is_of(job)
        if not runs:
            self._over.add(process)
        return runs

    @property
    def _are_hidden(self) -> bool:
        """Whether /proc hides root's processes (hidepid), the first of them among them."""
        return stat_of(INIT, self._proc) is None

    def _is_above(self, pid: int) -> bool:
        met: set[int] = set()
        while pid > INIT and pid not in met:
            met.add(pid)
            stat = stat_of(pid, self._proc)
            if stat is None:
                return False
            if self._is_stepd(stat):
                return True
            pid = stat.parent
        return False

    def _is_stepd(self, stat: Stat) -> bool:
        """Whether it is Slurm's: anybody may call their own as they like."""
        return stat.name == STEPD and uid_of(stat.number, self._proc) == ROOT

    def _is_of(self, job: Job) -> bool:
        """Whether there is one of a job: the one that is known, or any."""
        if job in self._found and job in self._jobs(self._found[job]):
            return True
        if not self._has_swept:
            self._has_swept = True
            slurm_steps = [stat.number for stat in everyone(self._proc) if self._is_stepd(stat)]
            self._found = {its: pid for pid in slurm_steps for its in self._jobs(pid)}
        return job in self._found

    def _jobs(self, pid: int) -> Iterator[Job]:
        """Yield the job that a slurmstepd's cgroup says, and that of its title: `[7.batch]`."""
        of_cgroup = membership(cgroups_of(pid, self._proc)).job
        if of_cgroup is not None:
            yield of_cgroup
        yield Job(SLURM, title_of(pid, self._proc).rpartition("[")[2].partition(".")[0])


def why(facts: ProcessFacts, slurm_steps: SlurmSteps, owners: ProcessOwners) -> str | None:
    """Return why a process that holds a GPU belongs to no living job; None: it does."""
    if facts.holding is None:
        return None
    if facts.state == ZOMBIE:
        return HAS_ENDED.format(parent=facts.parent) if has_ended(facts) else HEADLESS
    job = facts.membership.job
    if job is not None and job.scheduler == SLURM:
        return None if slurm_steps.may_run(facts, job) else OF_ENDED_JOB.format(job=job.id)
    is_kept = job or facts.membership.container or facts.service or facts.parent != INIT
    return None if is_kept else owners.why_not(facts.uid)


def has_ended(facts: ProcessFacts) -> bool:
    """Return whether a process runs no more, and is there because nobody has asked how it ended."""
    return facts.state == ZOMBIE and len(facts.threads) <= 1


class MissingProcesses:
    """Processes that the driver names and that are not there, twice running."""

    def __init__(self) -> None:
        """Begin with none."""
        self._asked: float | None = None
        self._gone: Collection[Holding] = ()  # those that were not there then
        self._missing: Collection[Holding] = ()

    def found(self, unseen: Collection[Holding], asked: float) -> Collection[Holding]:
        """Return those of a scan's unseen ones that the driver named before as well.

        `asked`: when it was; what it said once, and counts for several scans, is said once.
        """
        if asked != self._asked:
            gone = [it for it in unseen if not runs(it.pid)]
            known = {(it.pid, it.gpu) for it in self._gone}
            self._missing = [it for it in gone if (it.pid, it.gpu) in known]
            self._asked, self._gone = asked, gone
        return self._missing


def missing_process(holding: Holding) -> AuditedProcess:
    """Return what can be said of a process that is not there."""
    facts = ProcessFacts(
        pid=holding.pid,
        name="?",
        uid=None,
        start=0,
        parent=0,
        state=GONE,
        gpu=holding.gpu,
        holding=holding,
        membership=Membership(),
        cpuset=None,
        threads=(),
        beside=holding.beside,
    )
    return AuditedProcess(facts, UNKNOWN, placements=(), pinned_itself=(), orphan=NOT_THERE)


def runs(pid: int) -> bool:
    """Return whether there is a process, though /proc may hide it (hidepid): kill(2), signal 0."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # the latter: larger than any pid
        return False
    except PermissionError:  # another user's
        return True
    return True
