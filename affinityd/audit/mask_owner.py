"""Who set the mask of a process, as far as its environment, ancestors, threads and files tell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from affinityd.audit.gather import is_slurms
from affinityd.audit.model import ProcessFacts
from affinityd.cpuset import CpuSet, format_list, parse_list, parse_mask
from affinityd.linux.files import content, environment_of
from affinityd.linux.processes import Thread, stat_of, title_of
from affinityd.request.binders import BINDERS, NOTHING, OPENMP, Acting, earlier, in_memory, later

ANCESTORS = 8  #: whose command lines are read: servers start their workers
OURS, SLURMS, UNKNOWN = "affinityd", "Slurm", "unknown"


@dataclass(frozen=True)
class MaskOwner:
    """The program that set a mask."""

    name: str
    how: str = ""  #: by what it is known
    ends_it: str = ""  #: how a fight with it ends, as a clause

    def __str__(self) -> str:
        """Return it as a message says it."""
        how = f" ({self.how})" if self.how else ""
        return "; ".join(filter(None, (f"{self.name}{how}", self.ends_it)))


def owner_of(facts: ProcessFacts, root: str = "") -> MaskOwner | None:
    """Return the program that set a process's mask, or moved threads of it; None: none did.

    The kernel lets the reader wait for a lock of that process's memory.
    """
    found, main = environment_of(facts.pid, root), facts.threads[0].mask
    environ = found or {}
    moved = [thread for thread in facts.threads[1:] if thread.mask != main]
    ours, slices = frozenset[int](), list[CpuSet]()
    with suppress(ValueError):
        ours = parse_list(environ.get("AFFINITYD_CPULIST", ""))
    with suppress(ValueError):
        slices = [*map(parse_mask, environ.get("SLURM_CPU_BIND_LIST", "").split(","))]
    is_whole = facts.cpuset is None or main >= facts.cpuset
    if not moved:
        if ours and main == ours & (facts.cpuset or ours):  # a cpuset that shrank cut it down
            return MaskOwner(OURS, "AFFINITYD_CPULIST")
        if main in slices:
            return MaskOwner(SLURMS, "SLURM_CPU_BIND_LIST", "to end that: srun --cpu-bind=none")
        if is_whole and not ours:
            is_slurm = is_slurms(facts.membership.job)
            return MaskOwner(SLURMS, "the cpuset of its job") if is_slurm else None
    acting = next(_acting(facts, environ, moved, root), None)
    if acting is not None:
        return MaskOwner(acting.binder.name, acting.word, acting.binder.ends_it)
    how = "its environment cannot be read" if found is None else ""
    if moved:
        names = ", ".join(sorted({thread.name for thread in moved}))
        narrowed = all(thread.mask > main for thread in moved)
        how = "it moved the main thread alone" if narrowed else f"it moved threads: {names}"
    elif ours:
        how = f"affinityd gave it CPUs {format_list(ours)}"
    return MaskOwner(UNKNOWN, how)


def _acting(
    facts: ProcessFacts, environ: Mapping[str, str], moved: Sequence[Thread], root: str
) -> Iterator[Acting]:
    """Yield the binders that may have set the mask, the likeliest first: the last ones to act."""
    maps = (content(f"{root}/proc/{facts.pid}/maps") or b"").decode(errors="replace")
    libraries = [*dict.fromkeys(re.findall(r"/([^/\n]+\.so[^/\n]*)$", maps, re.MULTILINE))]
    loaded = [*in_memory(environ, libraries)]
    yield from (it for it in loaded if it.binder.fights)
    for thread in moved:
        for binder in BINDERS:
            if binder.threads and thread.name.startswith(binder.threads):
                yield Acting(binder, f"its thread {thread.name}")
        library = next((name for name in libraries if name.startswith(OPENMP)), None)
        # OpenMP gives each thread a place of its own, and none more CPUs than the main thread.
        is_alike = thread.name == facts.threads[0].name and not thread.mask > facts.threads[0].mask
        if library is not None and is_alike:
            openmp = next(it for it in BINDERS if it.name == "OpenMP")
            yield Acting(openmp, f"{library} and its threads")
    yield from loaded if moved else ()
    stat, left = stat_of(facts.pid, f"{root}/proc"), ANCESTORS
    while stat is not None and left:
        for acting in later(environ, title_of(stat.number, f"{root}/proc").split()):
            binder = acting.binder
            if not (binder.libraries or binder.before or binder.effect == NOTHING):
                yield acting
        stat, left = stat_of(stat.parent, f"{root}/proc"), left - 1
    yield from earlier(environ)
