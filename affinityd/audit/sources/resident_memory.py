"""Resident memory by NUMA node, within time limits, since reading it stalls the process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from affinityd.audit.model import AuditedProcess
from affinityd.linux import memory_policy

LARGEST = 16 * 2**30  #: bytes resident; the kernel walks them page by page, and the process waits
LONGEST = 10.0  #: seconds for all of them; the last may end later
PAGE = os.sysconf("SC_PAGE_SIZE")

ByNode = Mapping[int, int]  #: NUMA node → bytes


def read(processes: Iterable[AuditedProcess]) -> Mapping[int, ByNode | str]:
    """Return pid → its memory, or why it was not read: numa_maps, proc(5), one after the other.

    Known daemons are skipped.
    """
    pids = [it.facts.pid for it in processes if not it.is_daemon and it.facts.threads]
    deadline = time.monotonic() + LONGEST
    return {pid: _resident(pid, deadline) for pid in pids}


def _resident(pid: int, deadline: float) -> ByNode | str:
    if time.monotonic() > deadline:
        return f"the time limit for all processes, {LONGEST:g} s, has passed"
    try:
        size = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
        if size > LARGEST:
            return f"{size / 2**30:.0f} GiB are resident, more than {LARGEST / 2**30:.0f}"
        return memory_policy.resident_bytes(pid)
    except OSError as error:
        return str(error.strerror)
