"""Are the threads of a process where they are to run? Pure: by their masks, and a standard."""

from __future__ import annotations

from dataclasses import replace

from affinityd.audit.model import AuditedProcess
from affinityd.cpuset import format_list
from affinityd.enforce.exemptions import ExemptError
from affinityd.enforce.model import DRIFTED, FITS, ON_PURPOSE, SHARE, Decision, TargetCpus
from affinityd.text import count
from affinityd.topology.nearness import MASK, UNPINNED

CONFINED = (
    "somebody pinned it to {mask} on purpose; taskset -apc {cpuset} {pid} gives it back to its job"
)
THREADS = (
    "{threads} of it (first {first}) may run on CPUs {cpus}: somebody chose them; affinityd pin "
    "--force moves them"
)
ELSEWHERE = "it may run on CPUs {masks}, and is to run on {cpus}"


def judged(found: Decision, target: TargetCpus) -> Decision:
    """Return the decision about a process that has a place: it fits, or has drifted."""
    process = found.process
    verdicts = [verdict for _, verdict in target.verdicts(process.facts)]
    drifted, on_purpose = verdicts.count(DRIFTED), verdicts.count(ON_PURPOSE)
    found = replace(found, verdict=FITS, target=target, drifted=drifted, on_purpose=on_purpose)
    if not drifted:
        return found
    # Where the audit finds no mismatch, it runs near its GPU, on CPUs of others.
    # ALLOCATION is said by its own GPU, where one below it has near CPUs.
    cause = {None: SHARE, UNPINNED: UNPINNED}.get(process.cause, MASK)
    masks = format_list(frozenset().union(*target.drifted_masks(process.facts)))
    why = ELSEWHERE.format(masks=masks, cpus=format_list(target.cpus))
    return replace(found, verdict=DRIFTED, cause=cause, why=why)


def check_purpose(process: AuditedProcess, target: TargetCpus) -> None:
    """Raise ExemptError where a process that fits is, or has threads, elsewhere on purpose."""
    facts = process.facts
    away = [thread for thread, verdict in target.verdicts(facts) if verdict == ON_PURPOSE]
    if away[:1] == list(facts.threads[:1]):
        mask, cpuset = format_list(away[0].mask), format_list(target.cpuset)
        raise ExemptError(ON_PURPOSE, CONFINED.format(mask=mask, cpuset=cpuset, pid=facts.pid))
    if away and process.is_mismatch:
        threads = count(len(away), "thread")
        cpus = format_list(frozenset().union(*(thread.mask for thread in away)))
        why = THREADS.format(threads=threads, first=away[0].tid, cpus=cpus)
        raise ExemptError(ON_PURPOSE, why)
