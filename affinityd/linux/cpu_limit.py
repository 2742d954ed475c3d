"""The CPU limit of a process: the CPU time that its cgroup allows, as a number of CPUs.

Sources: kernel Documentation/scheduler/sched-bwc.rst (v1) and admin-guide/cgroup-v2.rst, cpu.max.
"""

from __future__ import annotations

from affinityd.linux.files import text
from affinityd.text import whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from affinityd.linux.cgroup import Cgroups

QUOTA, PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"  #: of v1; v2 has both in one file
MAX = "cpu.max"
MOST = 10**12 - 1  #: microseconds; more than a kernel writes here


def cpu_limit_of(cgroups: Cgroups) -> int | None:
    """Return the limit in CPUs, rounded up: the least of a process's cgroup and its parents.

    None where there is none, or it cannot be read.
    """
    # Imported here: a starting rank needs only its own limit.
    from affinityd.linux.cgroup import Version  # noqa: PLC0415

    versions = Version("cgroup", "cpu", ()), Version("cgroup2", "", ())
    folders = (folder for version in versions for folder in cgroups.folders(version))
    return min((limit for folder in folders if (limit := _limit(folder))), default=None)


def own_cpu_limit(mount: str = "/sys/fs/cgroup") -> int | None:
    """Return the limit of this process's container, which sees its own cgroup as the root.

    None where there is none; on a node itself the root has no limit.
    """
    return _limit(mount) or _limit(f"{mount}/cpu")


def _limit(folder: str) -> int | None:
    own = text(f"{folder}/{MAX}") or f"{text(f'{folder}/{QUOTA}')} {text(f'{folder}/{PERIOD}')}"
    numbers = [whole_number(word, MOST) for word in own.split(" ")]
    quota, period = numbers if len(numbers) == 2 else (None, None)  # noqa: PLR2004
    if quota is None or not period:  # v2's `max`, v1's -1
        return None
    return -(-quota // period) or None
