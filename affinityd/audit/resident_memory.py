"""Where the memory of processes lies, by NUMA node: within limits, as each of them is stalled."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from affinityd.audit.model import AuditedProcess, ProcessFacts
from affinityd.linux import memory_policy

LARGEST = 16 * 2**30  #: bytes resident; the kernel walks them page by page, and the process waits
LONGEST = 10.0  #: seconds for all of them; the last may end later
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class ResidentMemory:
    """What could be read, and why not what could not."""

    processes: tuple[ProcessFacts, ...]
    resident: Mapping[int, Mapping[int, int]]  #: pid → NUMA node → bytes
    refusals: Mapping[int, str]  #: pid → why it was not read


def read(processes: Iterable[AuditedProcess]) -> ResidentMemory:
    """Read one after the other: numa_maps, proc(5). Known daemons are left alone."""
    those = tuple(it.facts for it in processes if not it.is_daemon and it.facts.threads)
    deadline = time.monotonic() + LONGEST
    found = {facts.pid: _resident(facts.pid, deadline) for facts in those}
    return ResidentMemory(
        those,
        {pid: it for pid, it in found.items() if not isinstance(it, str)},
        {pid: it for pid, it in found.items() if isinstance(it, str)},
    )


def _resident(pid: int, deadline: float) -> Mapping[int, int] | str:
    """Return a process's memory, or why it was not read."""
    try:
        return _refusal(pid, deadline) or memory_policy.resident_bytes(pid)
    except OSError as error:
        return str(error.strerror)


def _refusal(pid: int, deadline: float) -> str | None:
    """Return why a process is passed over. Raises OSError."""
    if time.monotonic() > deadline:
        return f"the {LONGEST:g} s for all of them were over"
    size = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    if size > LARGEST:
        return f"{size / 2**30:.0f} GiB are resident, more than {LARGEST / 2**30:.0f}"
    return None
