"""Who asks over a unix socket: the CPUs that he may use, as the kernel has them while he asks.

His mask is that of his process's main thread, his cpuset that of its cgroup. Sources: unix(7),
sched_getaffinity(2), cpuset(7) for /proc/PID/cpuset, cgroups(7), pid_namespaces(7).
"""

from __future__ import annotations

import asyncio
import logging
import os
from functools import cached_property
from typing import NamedTuple

from affinityd.cpuset import CpuSet, format_list, parse_list
from affinityd.daemon.peers.connection import PeerConnection
from affinityd.daemon.peers.cpuset_cache import CpusetFiles
from affinityd.daemon.peers.pid_identity import Proof, has_pidfd
from affinityd.errors import BusyError
from affinityd.linux.files import present
from affinityd.linux.peercred import Credentials
from affinityd.linux.processes import mask_of
from affinityd.request.resolve import Caller

log = logging.getLogger(__name__)

#: A path as /proc/PID/cgroup would have it: of either version, since only one has the controller.
EITHER = b"1:cpuset:%b0::%b"


class CallerCpus(NamedTuple):
    """What the kernel says of a caller. Little is made of it: every request begins with this."""

    mask: CpuSet
    cpuset: bytes  #: a cpulist; b"": it is not to be seen

    @property
    def caller(self) -> Caller:
        """The caller as plans know him."""
        if not self.cpuset:
            return Caller(self.mask)
        cpuset = parse_list(self.cpuset.decode())
        # The two were read one after the other, and the cpuset may have been changed between.
        return Caller(self.mask & cpuset or cpuset, cpuset)


UNKNOWN = "who asks is not known, and without a cpuset is planned on all of the node"
OTHER_PIDS = (
    f"{UNKNOWN}: a caller is in a pid namespace that this daemon does not see; run it in the "
    "node's: hostPID: true, --pid=host"
)
OTHER_PROC = (
    f"{UNKNOWN}: /proc is of another pid namespace than this daemon; mount its own, or run it in "
    "the node's: hostPID: true, --pid=host"
)
HIDDEN = (
    f"{UNKNOWN}: /proc hides a caller from this daemon; give it CAP_SYS_PTRACE, or mount /proc "
    "without hidepid= and leave out ProtectProc="
)


class Callers:
    """Tells who asks, over a connection that he made."""

    def __init__(self, *, replayed: bool = False) -> None:
        """Begin; `replayed`: of a machine that is not this one nobody's CPUs are known.

        Raises OSError where it cannot be tried what the kernel tells of callers.
        """
        has_pidfd()
        self._replayed = replayed
        self._told: set[str] = set()
        self._now: dict[bytes, bytes | None] = {}

    def facts(self, connection: PeerConnection | None) -> CallerCpus | None:
        """Return what is known of who made a connection; None where nobody knows.

        Raises BusyError where there is too little of something to find out.
        """
        if self._replayed or connection is None or connection.credentials is None:
            return None
        try:
            return self._facts(connection.credentials, connection.proof)
        except OSError as error:
            raise BusyError(
                f"who asks cannot be found out now: {error.strerror}; try again in a moment"
            ) from None

    def _facts(self, peer: Credentials, proof: Proof) -> CallerCpus | None:
        if peer.pid <= 0 or not self._sees_own_pids:
            self._say_once(OTHER_PROC if peer.pid > 0 else OTHER_PIDS)
            return None
        facts = proof.holds(lambda: self._read(peer.pid))
        if facts is None and _is_hidden(peer.pid):
            self._say_once(HIDDEN)
        return facts

    def _read(self, pid: int) -> CallerCpus | None:
        """Return what there is to be known of a pid's process now; None where it is not seen."""
        mask, membership = mask_of(pid), self._membership(pid)
        if mask is None or membership is None:
            return None
        try:
            return CallerCpus(mask, self._cpuset(membership) or b"")
        except PermissionError:  # somebody has shut its folder: the mask is within it, anyway
            return CallerCpus(mask, format_list(mask).encode())

    def _membership(self, pid: int) -> bytes | None:
        """Return a process's cgroup as /proc/PID/cgroup has it; None where it is not seen.

        Where there is /proc/PID/cpuset, that is read: of who has lost his main thread the first
        version's /proc/PID/cgroup says "/", and all of it waits for whoever makes a cgroup.
        """
        try:
            if not self._tells_cpusets:
                return present(f"/proc/{pid}/cgroup")
            path = present(f"/proc/{pid}/cpuset")
        except PermissionError:  # hidepid=, proc(5)
            return None
        return None if path is None else EITHER % (path, path)

    def _cpuset(self, membership: bytes) -> bytes | None:
        """Return a cgroup's cpuset, read once in a turn of the event loop.

        All whose turn it is had asked before: of a job's ranks that start together, most.
        """
        if membership not in self._now:
            asyncio.get_running_loop().call_soon(self._now.clear)
            self._now[membership] = self._cpusets.cpuset(membership)
        return self._now[membership]

    def _say_once(self, cause: str) -> None:
        if cause not in self._told:
            self._told.add(cause)
            log.warning("%s", cause)

    @cached_property
    def _cpusets(self) -> CpusetFiles:
        return CpusetFiles()

    @cached_property
    def _tells_cpusets(self) -> bool:
        """Whether the kernel has /proc/PID/cpuset: CONFIG_PROC_PID_CPUSET, init/Kconfig."""
        return os.path.exists("/proc/self/cpuset")  # noqa: PTH110

    @cached_property
    def _sees_own_pids(self) -> bool:
        """Whether the numbers in /proc are those that a socket says."""
        try:
            return os.readlink("/proc/self") == str(os.getpid())  # noqa: PTH115
        except OSError:
            return False


def _is_hidden(pid: int) -> bool:
    """Whether there is a process of that number, and /proc does not show it."""
    try:
        os.kill(pid, 0)  # nothing is sent: kill(2)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return not os.path.exists(f"/proc/{pid}/cgroup")  # noqa: PTH110
