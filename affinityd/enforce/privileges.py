"""What it takes to pin other users' processes, and what of it this daemon lacks."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from affinityd.linux.processes import INITIAL_PIDS, PROC, status_of
from affinityd.linux.syscalls import SYS_NICE

#: /proc/self/ns/user of those whose capabilities count for every process: PROC_USER_INIT_INO,
#: kernel include/linux/proc_ns.h.
INITIAL_USERS = "user:[4026531837]"

NO_THREAD = 2**31 - 1  #: above any kernel's PID_MAX_LIMIT

NOT_ALL_PIDS = (
    "it is in a pid namespace of its own, and sees no job's processes: hostPID: true in its pod, "
    "podman run --pid=host"
)
NOT_ALL_USERS = (
    "it is in a user namespace of its own, whose CAP_SYS_NICE counts for no process outside: "
    "hostUsers: true in its pod, podman run as the node's root and without --userns"
)
NO_SYS_NICE = (
    "it has no CAP_SYS_NICE, which other users' processes take: affinityd.service.d/enforce.conf "
    "for systemd, enforce.mode: pin in the chart, podman run --cap-add=SYS_NICE"
)
REFUSED = (
    "sched_setaffinity(2) is refused here ({error}): affinityd.service.d/enforce.conf for systemd "
    "(SystemCallFilter=sched_setaffinity), elsewhere a seccomp profile that allows it"
)


def lacking(proc: str = PROC) -> str | None:
    """Return why this process cannot pin those of jobs, with the remedy; None: it can."""
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

    Of a thread that cannot be, the kernel says just that. Our own mask, set as it is, would be held
    whatever our cpuset becomes: since Linux 6.2 the kernel remembers what was asked for.
    """
    try:
        os.sched_setaffinity(NO_THREAD, {0})
    except OSError as error:
        if error.errno != errno.ESRCH:
            name = errno.errorcode.get(error.errno or 0, "")
            return REFUSED.format(error=f"{name}: {error.strerror}")
    return None
