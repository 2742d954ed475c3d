"""The users of a machine who have a session there, or a job of Slurm's, by /proc alone.

A session lasts as long as what let its user in: sshd, login, su, cron and a notebook server run as
another user, and stay the parent of the user's first process. A process with a terminal is of a
session, too, be it a detached tmux: the kernel takes a terminal from all processes of a session
that has ended. Neither logind nor utmp is asked: many machines have neither, and to logind a
session goes on, as `closing`, for as long as it has a process: the very one in question.

Sources: proc_pid_stat(5), tty_nr; sd-login(3); kernel drivers/tty/tty_jobctrl.c
`disassociate_ctty`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from affinityd.audit.judge import FIRST_USER
from affinityd.linux.processes import INIT, PROC, ROOT, everyone, stat_of, uid_of
from affinityd.linux.procstat import Stat

SLURMD = "slurmd"  #: Slurm's daemon of a node that runs jobs
STEPD = "slurmstepd"  #: what runs each step of a job, as root, from its beginning to its end

NO_SESSION = (
    "the process that started it has ended, its owner (uid {uid}) has no session left, and it "
    "belongs to no job, container or service"
)
NO_JOB = (
    "the process that started it has ended, and its owner (uid {uid}) has no job here, though "
    "Slurm runs this node's jobs; it belongs to no container or service"
)


@dataclass(frozen=True)
class UserActivity:
    """What one look at all processes says of their users, by uid."""

    in_session: frozenset[int]
    in_job: frozenset[int]  #: a slurmstepd has started a process of theirs
    has_slurmd: bool


def users_of(processes: Iterable[tuple[Stat, int | None]]) -> UserActivity:
    """Return what these processes, each with its real uid, say of their users."""
    living = [(stat, uid) for stat, uid in processes if not stat.is_zombie]
    by_pid = {stat.number: (stat.name, uid) for stat, uid in living}
    in_session, in_job = set(), set()
    for stat, uid in living:
        above, other = by_pid.get(stat.parent, ("", None))  # None: it is out of sight
        if uid is not None and (stat.terminal or (stat.parent != INIT and other != uid)):
            in_session.add(uid)
        if uid is not None and (above, other) == (STEPD, ROOT):
            in_job.add(uid)
    has_slurmd = (SLURMD, ROOT) in by_pid.values()
    return UserActivity(frozenset(in_session), frozenset(in_job), has_slurmd)


class ProcessOwners:
    """Says which users own what they have started; all processes are read once a scan at most."""

    def __init__(self, proc: str = PROC) -> None:
        """Take where the processes are."""
        self._proc = proc
        self._users: UserActivity | None = None

    def begin(self) -> None:
        """Begin another scan."""
        self._users = None

    def why_not(self, uid: int | None) -> str | None:
        """Return why a user no longer owns what runs in no job, container or service; None: does.

        Accounts of the system need no session, and where /proc hides other users' processes
        (hidepid) sessions cannot be seen.
        """
        if uid is None or uid < FIRST_USER or stat_of(INIT, self._proc) is None:
            return None
        if self._users is None:
            them = everyone(self._proc)
            self._users = users_of((stat, uid_of(stat.number, self._proc)) for stat in them)
        if self._users.has_slurmd:
            return None if uid in self._users.in_job else NO_JOB.format(uid=uid)
        return None if uid in self._users.in_session else NO_SESSION.format(uid=uid)
