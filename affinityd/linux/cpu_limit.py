"""The CPU limit of a process: how much CPU time its cgroup lets it use, as a number of CPUs.

Sources: kernel Documentation/scheduler/sched-bwc.rst (v1) and admin-guide/cgroup-v2.rst, cpu.max.
"""

# ruff: noqa: PTH123 - pathlib costs more to import than Python to start

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from affinityd.linux.cgroup import Cgroups

QUOTA, PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"  #: of v1; v2 has both in one file
MAX = "cpu.max"
LONGEST = 12  #: digits of a number that a kernel writes here


def cpu_limit_of(cgroups: Cgroups) -> int | None:
    """Return the limit in CPUs, rounded up: the least of a process's cgroup and those above it.

    None where there is none, or it cannot be read.
    """
    # Imported here: a rank that starts asks for its own limit alone.
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
    numbers = _words(f"{folder}/{MAX}") or [
        *_words(f"{folder}/{QUOTA}"),
        *_words(f"{folder}/{PERIOD}"),
    ]
    if len(numbers) != 2 or not all(map(_is_number, numbers)):  # noqa: PLR2004 - v2's `max`, v1's -1
        return None
    quota, period = map(int, numbers)
    return -(-quota // period) or None if period else None


def _words(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(64).split()
    except OSError:
        return []


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= LONGEST
