"""Are the threads of a process where they are to run? Pure: by their masks, and a standard."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from affinityd.audit.model import AuditedProcess, ProcessFacts
from affinityd.cpuset import CpuSet, format_list
from affinityd.enforce.model import (
    DRIFTED,
    FITS,
    LEFT,
    ON_PURPOSE,
    POLICY,
    SHARE,
    UNKNOWN_CPUSET,
    Decision,
    TargetCpus,
)
from affinityd.enforce.policy.model import Treatment
from affinityd.linux.processes import Thread
from affinityd.linux.procstat import ENDED
from affinityd.text import count
from affinityd.topology.nearness import MASK, UNPINNED

CONFINED = (
    "somebody pinned it to {mask} on purpose; taskset -apc {cpuset} {pid} gives it back to its job"
)
THREADS = (
    "{threads} of it (first {first}) may run on CPUs {cpus}: somebody chose them; affinityd pin "
    "--force moves them"
)
BY_MASKS = (
    "Slurm confines its tasks by masks alone here (task/affinity without task/cgroup's "
    "ConstrainCores=yes), so which CPUs are its job's and which another's is not known; set that "
    "in cgroup.conf, or pin with the TaskProlog"
)
MAY_LEAVE = (
    "rule {rule} of the policy may leave or observe it, and asks for what cannot be read here "
    "({unread}): give the daemon CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH for environments, "
    "/var/log/pods for namespaces and pods; or ask for something else"
)
ELSEWHERE = "it may run on CPUs {masks}, and is to run on {cpus}"


def judged(process: AuditedProcess, target: TargetCpus) -> Decision:
    """Return what is to become of a process that has a place."""
    facts = process.facts
    of = {mask: target.of(mask) for mask in {thread.mask for thread in facts.threads}}
    verdicts = [of[thread.mask] for thread in running(facts)]
    drifted, on_purpose = verdicts.count(DRIFTED), verdicts.count(ON_PURPOSE)
    found = Decision(process, FITS, target=target, drifted=drifted, on_purpose=on_purpose)
    if drifted:
        # Where the audit finds no mismatch, it runs near its GPU, on CPUs of others.
        # ALLOCATION is said by its own GPU, where one below it has near CPUs.
        cause = {None: SHARE, UNPINNED: UNPINNED}.get(process.cause, MASK)
        masks = format_list(frozenset().union(*drifted_masks(facts, target)))
        why = ELSEWHERE.format(masks=masks, cpus=format_list(target.cpus))
        found = replace(found, verdict=DRIFTED, cause=cause, why=why)
        if not facts.is_confined and _is_bound(target):
            return replace(found, verdict=LEFT, reason=UNKNOWN_CPUSET, why=BY_MASKS)
        return found
    main = facts.threads[:1] if facts.state not in ENDED else ()
    if any(of[thread.mask] == ON_PURPOSE for thread in main):
        mask, cpuset = format_list(main[0].mask), format_list(target.cpuset)
        why = CONFINED.format(mask=mask, cpuset=cpuset, pid=facts.pid)
        return replace(found, verdict=LEFT, reason=ON_PURPOSE, why=why)
    if on_purpose and process.is_mismatch:
        why = _of_threads(facts, [mask for mask, verdict in of.items() if verdict == ON_PURPOSE])
        return replace(found, verdict=LEFT, reason=ON_PURPOSE, why=why)
    return found


def _of_threads(facts: ProcessFacts, masks: Collection[CpuSet]) -> str:
    tids = [thread.tid for thread in running(facts) if thread.mask in masks]
    cpus = format_list(frozenset().union(*masks))
    return THREADS.format(threads=count(len(tids), "thread"), first=tids[0], cpus=cpus)


def unsure(decision: Decision, treatment: Treatment) -> Decision:
    """Return the decision; a process that an unreadable rule may leave is left."""
    if decision.verdict != DRIFTED or not treatment.unread:
        return decision
    why = MAY_LEAVE.format(rule=treatment.rule, unread=", ".join(treatment.unread))
    return replace(decision, verdict=LEFT, reason=POLICY, why=why)


def only_observed(decision: Decision, why: str | None) -> Decision:
    """Return the decision; what has drifted is not pinned where `why` says so."""
    if decision.verdict != DRIFTED or why is None:
        return decision
    return replace(decision, is_observed=True, why=f"{decision.why}; it is not pinned: {why}")


def _is_bound(target: TargetCpus) -> bool:
    """Whether a process was never seen with all of its cpuset: its mask may be its allocation."""
    return not any(mask >= target.cpuset for mask in target.usual)


def drifted_masks(facts: ProcessFacts, target: TargetCpus) -> frozenset[CpuSet]:
    """Return the masks that a pin would replace."""
    masks = {thread.mask for thread in running(facts)}
    return frozenset(mask for mask in masks if target.of(mask) == DRIFTED)


def running(facts: ProcessFacts) -> tuple[Thread, ...]:
    """Return the threads that run: a main one may have ended before the others."""
    return facts.threads[1:] if facts.state in ENDED else facts.threads
