"""Are the threads of a process where they are to run? Pure: by their masks, and a standard."""

from __future__ import annotations

from dataclasses import replace

from affinityd.audit.judge import ENDED
from affinityd.audit.model import MASK, UNPINNED, Audited, ProcessFacts, ThreadFacts
from affinityd.cpuset import CpuSet, format_list
from affinityd.enforce.model import (
    DRIFTED,
    FITS,
    LEFT,
    ON_PURPOSE,
    SHARE,
    UNKNOWN_CPUSET,
    Decision,
    Standard,
)

CONFINED = (
    "somebody pinned it to {mask} on purpose; taskset -apc {cpuset} {pid} gives it back to its job"
)


BY_MASKS = (
    "Slurm confines its tasks by masks alone here (task/affinity without task/cgroup's "
    "ConstrainCores=yes), so which CPUs are its job's and which another's is not known; set that "
    "in cgroup.conf, or pin with the TaskProlog"
)


def judged(process: Audited, standard: Standard) -> Decision:
    """Return what is to become of a process that has a place."""
    facts = process.facts
    of = {mask: standard.of(mask) for mask in {thread.mask for thread in facts.threads}}
    verdicts = [of[thread.mask] for thread in running(facts)]
    drifted, on_purpose = verdicts.count(DRIFTED), verdicts.count(ON_PURPOSE)
    found = Decision(process, FITS, standard=standard, drifted=drifted, on_purpose=on_purpose)
    if drifted:
        # Where the audit finds nothing that a pin mends, it runs near its GPU, on CPUs of others.
        cause = process.cause if process.cause in {MASK, UNPINNED} else SHARE
        found = replace(found, verdict=DRIFTED, cause=cause)
        if not facts.is_confined and _is_bound(standard):
            return replace(found, verdict=LEFT, reason=UNKNOWN_CPUSET, why=BY_MASKS)
        return found
    main = facts.threads[:1] if facts.state not in ENDED else ()
    if any(of[thread.mask] == ON_PURPOSE for thread in main):
        mask, cpuset = format_list(main[0].mask), format_list(standard.cpuset)
        why = CONFINED.format(mask=mask, cpuset=cpuset, pid=facts.pid)
        return replace(found, verdict=LEFT, reason=ON_PURPOSE, why=why)
    return found


def _is_bound(standard: Standard) -> bool:
    """Whether a process was never seen with all of its cpuset: its mask may be its allocation."""
    return not any(mask >= standard.cpuset for mask in standard.usual)


def drifted_masks(facts: ProcessFacts, standard: Standard) -> frozenset[CpuSet]:
    """Return the masks that a pin would replace."""
    masks = {thread.mask for thread in running(facts)}
    return frozenset(mask for mask in masks if standard.of(mask) == DRIFTED)


def running(facts: ProcessFacts) -> tuple[ThreadFacts, ...]:
    """Return the threads that run: a main one may have ended before the others."""
    return facts.threads[1:] if facts.state in ENDED else facts.threads
