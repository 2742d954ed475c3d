"""The CPUs that a caller on a unix socket may use, as the kernel has them at the request.

Its mask is that of its process's main thread, its cpuset that of its cgroup. Sources: unix(7),
sched_getaffinity(2), cgroups(7) for /proc/PID/cgroup, pid_namespaces(7).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict
from functools import cached_property, lru_cache

from starlette.types import Scope

from affinityd.cpuset import CpuSet, parse_list
from affinityd.daemon.peers.connection import PeerConnection, connection_of
from affinityd.daemon.peers.cpuset_cache import CpusetFiles
from affinityd.errors import BusyError
from affinityd.linux.processes import exists, mask_of
from affinityd.request.resolve import Caller

log = logging.getLogger(__name__)

FILES_OF_ONE = 2  #: open files of a caller: PeerConnection's

CALLER = "caller"  #: where a request's scope has the caller's CPUs, among its `state`

UNKNOWN = "the caller is unidentified; without a cpuset its plan is for the whole node"
OTHER_PIDS = (
    f"{UNKNOWN}: it is in a pid namespace that the daemon cannot see; run the daemon in the "
    "node's: hostPID: true, --pid=host"
)
OTHER_PROC = (
    f"{UNKNOWN}: /proc is of another pid namespace than the daemon; mount the daemon's own, or run "
    "it in the node's: hostPID: true, --pid=host"
)
HIDDEN = (
    f"{UNKNOWN}: /proc hides it from the daemon; give the daemon CAP_SYS_PTRACE, or mount /proc "
    "without hidepid= and leave out ProtectProc="
)


class Callers:
    """Reads which CPUs the process may use that made a connection."""

    def __init__(self, *, replayed: bool = False, most_open: int = 1) -> None:
        """Begin; `replayed`: the machine is not this one, so that no caller's CPUs are known.

        `most_open`: of how many callers, the latest, the files stay open, FILES_OF_ONE of each.
        """
        self._replayed = replayed
        self._most_open = most_open
        self._open: OrderedDict[PeerConnection, None] = OrderedDict()
        self._told: set[str] = set()
        self._now: dict[bytes, bytes | None] = {}

    def of_request(self, scope: Scope) -> Caller | None:
        """Return the CPUs of a request's caller, which are read once for each request.

        None where the caller is not known. Raises BusyError where no file is left to read them.
        """
        state = scope.setdefault("state", {})
        if CALLER not in state:
            state[CALLER] = self.of_connection(connection_of(scope))
        caller: Caller | None = state[CALLER]
        return caller

    def of_connection(self, connection: PeerConnection | None) -> Caller | None:
        """Return the CPUs of the process that made a connection, as `of_request` does."""
        if self._replayed or connection is None or connection.credentials is None:
            return None
        pid = connection.credentials.pid
        if pid <= 0 or not self._sees_own_pids:
            self._say_once(OTHER_PROC if pid > 0 else OTHER_PIDS)
            return None
        self._keep_open(connection)
        try:
            found = self._read(connection, pid)
            if found is not None and connection.is_same_process():
                return found
        except OSError as error:
            raise BusyError(
                f"the caller cannot be identified now: {error.strerror}; try again in a moment"
            ) from None
        if exists(pid) and not os.path.exists(f"/proc/{pid}/cgroup"):  # noqa: PTH110
            self._say_once(HIDDEN)
        return None

    def _keep_open(self, connection: PeerConnection) -> None:
        """Let this connection have files open, and the one that asked longest ago no more."""
        self._open[connection] = None
        self._open.move_to_end(connection)
        if len(self._open) > self._most_open:
            self._open.popitem(last=False)[0].close()

    def _read(self, connection: PeerConnection, pid: int) -> Caller | None:
        """Return the CPUs of a pid's process now; None where it is not seen."""
        try:
            mask, membership = mask_of(pid), connection.membership()
        except PermissionError:  # hidepid=, proc(5)
            return None
        if mask is None or membership is None:
            return None
        try:
            cpus = self._cpuset(membership)
        except PermissionError:  # its cgroup's folder is shut: the mask is within it, anyway
            return Caller(mask, mask)
        if cpus is None:
            return Caller(mask)
        return _within(mask, cpus)

    def _cpuset(self, membership: bytes) -> bytes | None:
        """Return a cgroup's cpuset, read once in a turn of the event loop for a job's ranks."""
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
    def _sees_own_pids(self) -> bool:
        """Whether the pids in /proc are those of a socket's peers."""
        try:
            return os.readlink("/proc/self") == str(os.getpid())  # noqa: PTH115
        except OSError:
            return False


@lru_cache(maxsize=64)  # for every request
def _within(mask: CpuSet, cpus: bytes) -> Caller:
    """Return a caller by its mask and its cpuset, which may have changed since then."""
    cpuset = parse_list(cpus.decode())
    return Caller(mask & cpuset or cpuset, cpuset)
