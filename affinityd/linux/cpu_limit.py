"""The CPU limit of a process: the CPU time that its cgroup allows, as a number of CPUs.

Since 1.33 kubelet sets no limit for exclusive CPUs (DisableCPUQuotaWithExclusiveCPUs). Their
container's weight is then of as many CPUs as its cpuset has, which is taken for the limit.

Sources: kernel Documentation/scheduler/sched-bwc.rst (v1) and admin-guide/cgroup-v2.rst, cpu.max
and cpu.weight; Kubernetes pkg/kubelet/cm/helpers_linux.go, MilliCPUToShares; opencontainers/cgroups
utils.go, ConvertCPUSharesToCgroupV2Value, whose weights are larger since runc 1.3.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from affinityd.linux.files import content, text
from affinityd.text import whole_number

if TYPE_CHECKING:
    from affinityd.linux.cgroup import Cgroups

QUOTA, PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"  #: of v1; v2 has both in one file
MAX = "cpu.max"
SHARES, WEIGHT = "cpu.shares", "cpu.weight"  #: of v1, and of v2
OF_ROOT = "release_agent"  #: a file that v1 has in the root cgroup alone, cgroups(7)
SHARES_OF_A_CPU, MOST_SHARES = 1024, 262144
MOST = 10**12 - 1  #: microseconds; more than a kernel writes here


def cpu_limit_of(cgroups: Cgroups) -> int | None:
    """Return the limit in CPUs, rounded up: the least of a process's cgroup and its parents.

    None where there is none, or it cannot be read.
    """
    # Imported here: a starting rank needs only its own limit.
    from affinityd.linux.cgroup import Version  # noqa: PLC0415

    versions = Version("cgroup", "cpu", ()), Version("cgroup2", "", ())
    folders = [folder for version in versions for folder in cgroups.folders(version)]
    limits = [limit for folder in folders if (limit := _limit(folder))]
    if limits or not folders:
        return min(limits, default=None)
    return _exclusive(folders[0], len(cgroups.cpuset or ()))


def own_cpu_limit(cpus: int, mount: str = "/sys/fs/cgroup") -> int | None:
    """Return the limit of this process's container, which sees its own cgroup as the root.

    `cpus`: how many it may use. None where there is none; on a node itself the root has no limit.
    """
    folders = (mount, f"{mount}/cpu")
    limits = (find for folder in folders if (find := _limit(folder)))
    exclusive = (find for folder in folders if (find := _exclusive(folder, cpus)))
    return next(limits, None) or next(exclusive, None)


def _exclusive(folder: str, cpus: int) -> int | None:
    """Return the number of CPUs of a cpuset, if a cgroup's weight is of as many.

    Not of the root's, on a node itself: v1 has a weight there too, of one CPU.
    """
    if content(f"{folder}/{OF_ROOT}") is not None:
        return None
    shares = min(SHARES_OF_A_CPU * cpus, MOST_SHARES)
    of_v2 = 1 + (shares - 2) * 9999 // (MOST_SHARES - 2)
    for file, least in ((WEIGHT, of_v2), (SHARES, shares)):
        weight = whole_number(text(f"{folder}/{file}") or "", MOST)
        if cpus and weight is not None:
            return cpus if weight >= least else None
    return None


def _limit(folder: str) -> int | None:
    own = text(f"{folder}/{MAX}") or f"{text(f'{folder}/{QUOTA}')} {text(f'{folder}/{PERIOD}')}"
    numbers = [whole_number(word, MOST) for word in own.split(" ")]
    quota, period = numbers if len(numbers) == 2 else (None, None)  # noqa: PLR2004
    if quota is None or not period:  # v2's `max`, v1's -1
        return None
    return -(-quota // period) or None
