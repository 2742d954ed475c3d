"""The files of cgroups' cpusets: found once, read every time."""

from __future__ import annotations

import os
import select

from affinityd.daemon.state.cache import Cache
from affinityd.linux.cgroup import Cgroups
from affinityd.linux.files import present

MAX_BYTES = 1024 * 1024  #: of the cgroups with cached files, and of the files' paths
ENTRY_BYTES = 512  #: the rest of one, about


class CpusetFiles:
    """Knows where cgroups have their cpusets, until something is mounted or unmounted."""

    def __init__(self) -> None:
        """Begin to watch the mounts. Raises OSError where they cannot be seen."""
        self._changes = select.poll()
        mounts = os.open("/proc/self/mountinfo", os.O_RDONLY)
        self._changes.register(mounts, select.POLLPRI)  # proc(5)
        self._found: Cache[bytes, tuple[str, ...]] = Cache(MAX_BYTES)

    def cpuset(self, membership: bytes) -> bytes | None:
        """Return the cpulist that a cgroup allows its processes; None if it cannot be seen.

        `membership` is their /proc/PID/cgroup. Raises OSError if that cannot be read,
        as `present` does: a parent of an unreadable folder may allow more than the folder.
        """
        if self._changes.poll(0):
            self._found = Cache(MAX_BYTES)
        known = self._found.get(membership)
        files = known or tuple(Cgroups(os.fsdecode(membership)).cpuset_files())
        cpus = next((cpus for file in files if (cpus := (present(file) or b"").strip())), None)
        # A missing file may appear: a sibling cgroup that is looked up by its name.
        if known is None and cpus is not None:
            weight = len(membership) + sum(map(len, files)) + ENTRY_BYTES
            self._found.put(membership, files, weight)
        return cpus
