"""The files of cgroups' cpusets: found once, read every time."""

from __future__ import annotations

import os
import select

from affinityd.daemon.state.cache import Cache
from affinityd.linux.cgroup import Cgroups
from affinityd.linux.files import present

MAX_BYTES = 1024 * 1024  #: of the cgroups whose files are remembered, and of the files' paths
ENTRY_BYTES = 512  #: what one weighs besides, about


class CpusetFiles:
    """Knows where cgroups have their cpusets, until something is mounted or unmounted."""

    def __init__(self) -> None:
        """Begin to watch the mounts. Raises OSError where they cannot be seen."""
        self._changes = select.poll()
        mounts = os.open("/proc/self/mountinfo", os.O_RDONLY)
        self._changes.register(mounts, select.POLLPRI)  # proc(5)
        self._found: Cache[bytes, tuple[str, ...]] = Cache(MAX_BYTES)

    def cpuset(self, membership: bytes) -> bytes | None:
        """Return the cpulist that a cgroup lets its processes use; None where it cannot be seen.

        `membership` is what their /proc/PID/cgroup says. Raises OSError where that cannot be told,
        as `present` does: what is above a folder that is shut may be more than what is in it.
        """
        if self._changes.poll(0):
            self._found = Cache(MAX_BYTES)
        known = self._found.get(membership)
        files = known or tuple(Cgroups(os.fsdecode(membership)).cpuset_files())
        cpus = next((cpus for file in files if (cpus := (present(file) or b"").strip())), None)
        # What was not found may come: a cgroup that is looked for by its name, from beside it.
        if known is None and cpus is not None:
            weight = len(membership) + sum(map(len, files)) + ENTRY_BYTES
            self._found.put(membership, files, weight)
        return cpus
