"""The owners of a machine's processes: Slurm jobs and users' sessions, by /proc.

A session lasts as long as the program of its login: sshd, login, su, cron or a notebook server.
That runs as another user, and stays the parent of the user's first process. A process with a
terminal, even a detached tmux, is in a session too: the kernel takes the terminal from all
processes of an ended session. Neither logind nor utmp is read: many machines have neither, and for
logind a session stays, as `closing`, as long as it has a process: the very one in question.

Sources: proc_pid_stat(5), tty_nr; sd-login(3); kernel drivers/tty/tty_jobctrl.c
`disassociate_ctty`; Slurm's src/slurmd/slurmstepd/slurmstepd_job.c for slurmstepd's title.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

from affinityd.audit.facts.job import SLURM, Job
from affinityd.audit.facts.membership import membership
from affinityd.audit.facts.process import ProcessFacts
from affinityd.audit.judge import FIRST_USER
from affinityd.linux.processes import (
    INIT,
    ROOT,
    ProcessTable,
    ancestors,
    cgroups_of,
    title_of,
    uid_of,
)

SLURMD = "slurmd"  #: Slurm's daemon of a node that runs jobs
STEPD = "slurmstepd"  #: runs each step of a job, as root, from its beginning to its end

NO_SESSION = (
    "its parent has ended, its user (uid {uid}) has no session, and it is in no "
    "job, container or service"
)
NO_JOB = (
    "its parent has ended, its user (uid {uid}) has no Slurm job on this node, and "
    "it is in no container or service"
)


class ProcessOwners:
    """Finds the owners of one scan's processes."""

    def __init__(self, processes: ProcessTable) -> None:
        self._processes = processes

    def has_step(self, facts: ProcessFacts, job: Job) -> bool:
        """Whether a slurmstepd is an ancestor of a process, or of its job, or may be hidden."""
        above = ancestors(facts.parent, self._processes.parents)
        return (
            not self._processes.has_all or job in self._jobs or not self._stepds.isdisjoint(above)
        )

    def why_not(self, uid: int | None) -> str | None:
        """Return why a process of a user has no owner; None: it has one.

        Accounts of the system need no session, and where /proc hides other users' processes
        (hidepid) sessions cannot be seen.
        """
        if uid is None or uid < FIRST_USER or not self._processes.has_all:
            return None
        users, why_not = self._users
        return None if uid in users else why_not.format(uid=uid)

    @cached_property
    def _stepds(self) -> frozenset[int]:
        """The pids of Slurm's slurmstepd: root's, as any user may give a program that name."""
        by_pid = self._processes.by_pid
        named = (pid for pid, stat in by_pid.items() if stat.name == STEPD)
        return frozenset(pid for pid in named if uid_of(pid, self._processes.proc) == ROOT)

    @cached_property
    def _jobs(self) -> frozenset[Job]:
        """The jobs in a slurmstepd's cgroup path or title: `slurmstepd: [7.batch]`."""
        proc = self._processes.proc
        cgroups = (membership(cgroups_of(pid, proc)).job for pid in self._stepds)
        titles = (title_of(pid, proc).rpartition("[")[2] for pid in self._stepds)
        of_titles = (Job(SLURM, title.partition(".")[0]) for title in titles)
        return frozenset((*(job for job in cgroups if job is not None), *of_titles))

    @cached_property
    def _users(self) -> tuple[Collection[int | None], str]:
        """The uids of users that own their processes, and the sentence for every other user.

        Where Slurm runs the jobs, a user owns processes if a slurmstepd has started one for that
        user; elsewhere, if the user has a session.
        """
        by_pid, proc = self._processes.by_pid, self._processes.proc
        living = [stat for stat in by_pid.values() if not stat.is_zombie]
        uids = {stat.number: uid_of(stat.number, proc) for stat in living}
        named = {stat.number: (stat.name, uids[stat.number]) for stat in living}
        if (SLURMD, ROOT) in named.values():
            above = ((named.get(stat.parent), uids[stat.number]) for stat in living)
            return {uid for parent, uid in above if parent == (STEPD, ROOT)}, NO_JOB
        in_session = (
            uids[stat.number]
            for stat in living
            if stat.terminal or (stat.parent != INIT and uids.get(stat.parent) != uids[stat.number])
        )
        return set(in_session), NO_SESSION
