"""The verdict on a process: it fits, has drifted, or is left alone, with a sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from affinityd.audit.model import AuditedProcess
from affinityd.cpuset import format_list
from affinityd.enforce.model import (
    DAEMON,
    DRIFTED,
    FITS,
    NO_JOB,
    NO_POLICY,
    ON_PURPOSE,
    OPTED_OUT,
    POLICY,
    SHARE,
    UNKNOWN_CPUSET,
    UNKNOWN_PLACE,
    Decision,
    TargetCpus,
)
from affinityd.text import count
from affinityd.topology.nearness import MASK, UNPINNED

#: For reasons that are found before its place.
WHY: Mapping[str, str] = {
    DAEMON: "it is a known system daemon",
    NO_JOB: (
        "it is in no job, or has left its parent's job (its cgroups are {cgroups}): start "
        "it by Slurm or in a container, or name its cgroup in a rule of the policy"
    ),
    NO_POLICY: "no policy could be read since the start: correct the policy file",
    POLICY: "{which} of the policy leaves it alone",
    OPTED_OUT: "AFFINITYD=off is in the environment of process {pid} of its job",
    UNKNOWN_PLACE: "the NUMA node of {gpus} is not known: affinityd doctor says what would help",
    UNKNOWN_CPUSET: (
        "the cpuset of process {pid} cannot be read here: mount the node's cgroups "
        "where the daemon runs"
    ),
}

#: For reasons not to pin a drifted process.
BY_MASKS = (
    "Slurm confines tasks only by masks here (task/affinity without task/cgroup's "
    "ConstrainCores=yes), so the CPUs of its job are not known: set ConstrainCores=yes in "
    "cgroup.conf, or pin with the TaskProlog"
)
MAY_LEAVE = (
    "rule {rule} of the policy may leave it alone or observe it, but a key of the rule cannot "
    "be read here ({unread}): give the daemon CAP_SYS_PTRACE and "
    "CAP_DAC_READ_SEARCH for environments, /var/log/pods for namespaces and pods; "
    "or use other keys"
)
GIVEN = (
    "it asked for more CPUs than are near its GPUs, and was given CPUs {cpus}: give its job more "
    "near CPUs"
)

#: For processes that fit otherwise.
CONFINED = "it was pinned to {mask} on purpose; taskset -apc {cpuset} {pid} resets it"
THREADS = (
    "{threads} of it (first {first}) may run on CPUs {cpus}: they were pinned on "
    "purpose; affinityd pin --force moves them"
)

#: How it has drifted, and why it is only observed then.
ELSEWHERE = "it may run on CPUs {masks}, and should run on {cpus}"
BY_JOB = "AFFINITYD=observe is in the environment of process {pid} of its job"
BY_POLICY = "{which} of the policy says observe"


class ExemptError(Exception):
    """A process is left alone."""

    def __init__(self, reason: str, why: str | None = None, **said: object) -> None:
        """Take one of REASONS, and a sentence, or the values for its sentence of WHY."""
        super().__init__(WHY[reason].format(**said) if why is None else why)
        self.reason = reason


def judged(found: Decision, target: TargetCpus) -> Decision:
    """Return the decision about a process that has a place: it fits, or has drifted."""
    process = found.process
    verdicts = [verdict for _, verdict in target.verdicts(process.facts)]
    drifted, on_purpose = verdicts.count(DRIFTED), verdicts.count(ON_PURPOSE)
    found = replace(found, verdict=FITS, target=target, drifted=drifted, on_purpose=on_purpose)
    if not drifted:
        return found
    # Where the audit finds no mismatch, it runs near its GPU, on CPUs of others.
    # ALLOCATION is judged by its own GPU, if a descendant's GPU has near CPUs.
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
