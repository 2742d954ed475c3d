"""The CPUs that this process might run on."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from affinityd.cpuset import CpuSet

MOST_CPUS = 8192  #: the most that an x86 kernel is built for; the kernel passes over the rest


def own_cpuset() -> CpuSet:
    """Return what the kernel lets a thread of this process widen its mask to.

    That is right for cgroups of both versions, however they are mounted: sched_setaffinity(2).
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(_widest_mask).result()


def _widest_mask() -> CpuSet:
    """Widen the mask of the calling thread, and of no other, as far as the kernel allows."""
    with suppress(OSError):
        os.sched_setaffinity(0, range(MOST_CPUS))
    return frozenset(os.sched_getaffinity(0))
