"""The hindrances of a pin: a missing privilege, or another daemon that pins.

Two daemons with different settings would move a job's threads back and forth for ever: one has the
lock of a file, flock(2), and the others observe.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from affinityd.linux.processes import INITIAL_PIDS, PROC, status_of
from affinityd.linux.syscalls import SYS_NICE

#: /proc/self/ns/user if capabilities count for every process: PROC_USER_INIT_INO,
#: kernel include/linux/proc_ns.h.
INITIAL_USERS = "user:[4026531837]"

NO_THREAD = 2**31 - 1  #: above any kernel's PID_MAX_LIMIT

NOT_ALL_PIDS = (
    "the daemon is in a pid namespace of its own, and sees no job's processes: set hostPID: true "
    "in its pod, or podman run --pid=host"
)
NOT_ALL_USERS = (
    "the daemon is in a user namespace of its own, and has no CAP_SYS_NICE over processes outside: "
    "set hostUsers: true in its pod, or run podman as the node's root and without --userns"
)
NO_SYS_NICE = (
    "the daemon has no CAP_SYS_NICE, by which it pins other users' processes: use "
    "affinityd.service.d/enforce.conf for systemd, enforce.mode: pin in the chart, "
    "or podman run --cap-add=SYS_NICE"
)
REFUSED = (
    "sched_setaffinity(2) is refused to the daemon ({error}): use affinityd.service.d/enforce.conf "
    "for systemd (SystemCallFilter=sched_setaffinity), elsewhere a seccomp profile that allows it"
)

LOCK = "/run/affinityd/enforce.lock"

#: No link leads to another file, and no child inherits the lock.
FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC

TAKEN = (
    "another daemon pins on this node (fuser {path} names it): this daemon observes until the "
    "other has ended"
)
NO_LOCK = "the lock of the one daemon that pins on a node cannot be taken: {path}: {why}"


def lacking(proc: str = PROC) -> str | None:
    """Return why this process cannot pin processes of jobs, with the remedy; None: it can."""
    if _is_apart(f"{proc}/self/ns/pid", INITIAL_PIDS):
        return NOT_ALL_PIDS
    if _is_apart(f"{proc}/self/ns/user", INITIAL_USERS):
        return NOT_ALL_USERS
    if not int(status_of("self", "CapEff", proc) or "0", 16) >> SYS_NICE & 1:
        return NO_SYS_NICE
    return _refusal()


def _is_apart(namespace: str, initial: str) -> bool:
    try:
        return os.fspath(Path(namespace).readlink()) != initial
    except OSError:  # a kernel without such namespaces
        return False


def _refusal() -> str | None:
    """Return why the call is refused for any process; None: it reaches the kernel.

    The call is for a thread that cannot exist, which the kernel reports. The daemon's own mask, set
    again, would persist when its cpuset changes: since Linux 6.2 the kernel keeps the request.
    """
    try:
        os.sched_setaffinity(NO_THREAD, {0})
    except OSError as error:
        if error.errno != errno.ESRCH:
            name = errno.errorcode.get(error.errno or 0, "")
            return REFUSED.format(error=f"{name}: {error.strerror}")
    return None


class NodeLock:
    """The lock, once it is free; the kernel frees it, however a daemon ends."""

    def __init__(self, path: str = LOCK) -> None:
        """Take where the lock is."""
        self._path = Path(path)
        self._file: int | None = None  # this process has the lock

    def acquire(self) -> str | None:
        """Return why this daemon must not pin; None: it has the lock. Call it before each pass.

        A removed or replaced file is no lock between two daemons.
        """
        if self._file is not None and not self._is_there(self._file):
            os.close(self._file)
            self._file = None
        try:
            self._file = self._file or self._locked()
        except BlockingIOError:
            return TAKEN.format(path=self._path)
        except OSError as error:
            return NO_LOCK.format(path=self._path, why=error.strerror)
        return None

    def _locked(self) -> int:
        """Return the file, locked. Raises OSError: BlockingIOError where another daemon has it."""
        folder = self._path.parent
        if not folder.exists():
            folder.mkdir()
            folder.chmod(0o755)  # independent of the umask: sockets are there, too
        file = os.open(self._path, FLAGS, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._is_there(file):
                raise BlockingIOError  # another daemon that pins has replaced it
        except OSError:
            os.close(file)
            raise
        return file

    def _is_there(self, file: int) -> bool:
        """Whether a path still leads to the open file."""
        try:
            return os.path.samestat(os.fstat(file), self._path.lstat())
        except OSError:
            return False
