"""The CPU limit of a process: how much CPU time its cgroup lets it use, as a number of CPUs.

Sources: kernel Documentation/scheduler/sched-bwc.rst (v1) and admin-guide/cgroup-v2.rst, cpu.max.
"""

from __future__ import annotations

from affinityd.cgroup import Version, cgroup_folders, read_text

VERSIONS = (Version("cgroup", "cpu", ("cpu.cfs_quota_us",)), Version("cgroup2", None, ("cpu.max",)))
PERIOD = "cpu.cfs_period_us"  #: of v1; v2 has both numbers in one file


def cpu_limit_of(pid: int, root: str = "/") -> int | None:
    """Return the limit in CPUs, rounded up: the least of a process's cgroup and those above it.

    None where there is none, or it cannot be read. `root`: where the files of the machine are.
    """
    limits = [
        limit
        for version, folder in cgroup_folders(pid, root, VERSIONS)
        if (limit := _limit(folder, version.files[0]))
    ]
    return min(limits, default=None)


def _limit(folder: str, file: str) -> int | None:
    quota, *period = (read_text(f"{folder}/{file}") or "").split()[:2] or [""]
    over = period or (read_text(f"{folder}/{PERIOD}") or "").split()
    if not quota.isdecimal() or not over or not over[0].isdecimal() or int(over[0]) == 0:
        return None  # v2's `max`, v1's -1
    return -(-int(quota) // int(over[0])) or None
