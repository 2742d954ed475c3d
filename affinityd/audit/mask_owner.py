"""What set the mask of a process, as far as its environment, cpuset and threads tell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from affinityd.audit.jobs import is_slurms
from affinityd.audit.model import ProcessFacts
from affinityd.cpuset import CpuSet, format_list, parse_list, parse_mask
from affinityd.linux.files import content, environment_of
from affinityd.linux.processes import Thread
from affinityd.request.slurm_task import REMEDY as SLURM_REMEDY

OURS, SLURMS, OPENMP, UNKNOWN = "affinityd", "Slurm", "OpenMP", "unknown"
#: The file of an OpenMP runtime among those that a process maps: of GCC, Intel or LLVM.
RUNTIME = re.compile(r"/(lib(?:gomp|iomp5|omp)\b[^/\n]*)$", re.MULTILINE)


@dataclass(frozen=True)
class MaskOwner:
    """The program that set a mask."""

    name: str
    how: str = ""  #: by what it is known
    ends_it: str = ""  #: how it leaves the mask, as a clause

    def __str__(self) -> str:
        """Return it as a message says it."""
        how = f" ({self.how})" if self.how else ""
        return "; ".join(filter(None, (f"{self.name}{how}", self.ends_it)))


def owner_of(facts: ProcessFacts, root: str = "") -> MaskOwner | None:
    """Return the program that set a process's mask, or moved threads of it; None: none did.

    The kernel lets the reader wait for a lock of that process's memory.
    """
    read, main = environment_of(facts.pid, root), facts.threads[0].mask
    environ = read or {}
    ours, slices = frozenset[int](), list[CpuSet]()
    with suppress(ValueError):
        ours = parse_list(environ.get("AFFINITYD_CPULIST", ""))
    with suppress(ValueError):
        slices = [*map(parse_mask, environ.get("SLURM_CPU_BIND_LIST", "").split(","))]
    moved = [thread for thread in facts.threads[1:] if thread.mask != main]
    if moved:
        return _owner_of_threads(facts, moved, root)
    if ours and main == ours & (facts.cpuset or ours):  # a cpuset that shrank cut it down
        return MaskOwner(OURS, "AFFINITYD_CPULIST")
    if main in slices:
        return MaskOwner(SLURMS, "SLURM_CPU_BIND_LIST", f"{SLURM_REMEDY} gives near CPUs")
    if ours:
        return MaskOwner(UNKNOWN, f"affinityd gave it CPUs {format_list(ours)}")
    if facts.cpuset is None or main >= facts.cpuset:
        is_slurm = is_slurms(facts.membership.job)
        return MaskOwner(SLURMS, "the cpuset of its job") if is_slurm else None
    return MaskOwner(UNKNOWN, "its environment cannot be read" if read is None else "")


def _owner_of_threads(facts: ProcessFacts, moved: Sequence[Thread], root: str) -> MaskOwner:
    """Return what moved threads of a process: OpenMP gives each thread a place of its own."""
    main = facts.threads[0]
    maps = (content(f"{root}/proc/{facts.pid}/maps") or b"").decode(errors="replace")
    runtime = RUNTIME.search(maps)
    for thread in moved:
        # OpenMP gives no thread more CPUs than the main one.
        if runtime and thread.name == main.name and not thread.mask > main.mask:
            how = f"{runtime[1]} and its threads"
            return MaskOwner(OPENMP, how, "to end that: OMP_PROC_BIND=false")
    if all(thread.mask > main.mask for thread in moved):
        return MaskOwner(UNKNOWN, "it moved the main thread alone")
    names = ", ".join(sorted({thread.name for thread in moved}))
    return MaskOwner(UNKNOWN, f"it moved threads: {names}")
