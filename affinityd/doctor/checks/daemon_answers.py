"""What the daemon says when it is asked: whether it knows the caller, and whether it enforces.

It plans within the cpuset of a caller that states none, and is asked here as any job asks; what its
process is kept from seeing is the cause where it does not know. Sources: unix(7), SO_PEERCRED;
pid_namespaces(7); proc(5); cgroups(7).
"""

from __future__ import annotations

from affinityd.config.settings import PIN
from affinityd.cpuset import format_list
from affinityd.doctor.checks.daemon_process import hidepid
from affinityd.doctor.conditions import of_daemon
from affinityd.doctor.facts import CallerIdentification, DaemonFacts, NodeFacts
from affinityd.doctor.result import WARN, CheckResult, CheckResults, not_applicable, ok, warn
from affinityd.enforce.document import EnforceDocument
from affinityd.linux.mounts import Mount
from affinityd.topology.node import Node

KNOWN = "caller"  #: `allowed.source` of a plan for a caller that is identified

UNKNOWN = (
    "the daemon does not know who asks: jobs that state no cpuset are planned on all of the node"
)
NO_CAUSE = "its log says why: journalctl -u affinityd"


@of_daemon
def caller(facts: NodeFacts, daemon: DaemonFacts) -> CheckResults:
    """Judge whether a daemon knows this process, which asks it for a plan."""
    answer, published = daemon.identification, daemon.published
    if isinstance(answer, str):
        yield not_applicable(answer)
    elif answer.source != KNOWN and isinstance(published, Node) and published.replayed:
        name = published.topology.name
        yield not_applicable(f"the daemon replays {name}, of which nobody's CPUs are known")
    elif answer.source != KNOWN:
        yield from _unknown(facts)
    elif answer.within is None and answer.cpuset is not None:
        yield _mask_alone(facts, daemon, answer)
    else:
        within = f" within its cpuset, CPUs {answer.within}" if answer.within else ""
        yield ok(f"the daemon knows who asks: this process is planned{within}")


def _unknown(facts: NodeFacts) -> CheckResults:
    """Yield it with each cause that is to be seen."""
    causes = [it for it in hidepid(facts) if it.status == WARN]
    for cause in causes:
        yield warn(f"{UNKNOWN}: {cause.found}", cause.remedy or NO_CAUSE)
    if not causes:
        yield warn(UNKNOWN, NO_CAUSE)


def _mask_alone(facts: NodeFacts, daemon: DaemonFacts, answer: CallerIdentification) -> CheckResult:
    seen = facts.mounts(daemon.pid) if daemon.pid else None
    has_none = seen is not None and not any(map(_has_cpusets, seen.values()))
    why = "no cgroups are mounted where it runs" if has_none else "it does not see its cgroup"
    return warn(
        f"the daemon knows the mask of who asks, and no cpuset: {why}; this process has CPUs "
        f"{format_list(answer.cpuset or ())}",
        "mount the node's /sys/fs/cgroup where it runs, as hostPID: true of the chart does; in a "
        "unit leave out InaccessiblePaths=/sys and the like",
    )


def _has_cpusets(mount: Mount) -> bool:
    return mount.kind == "cgroup2" or (mount.kind == "cgroup" and "cpuset" in mount.options)


@of_daemon
def enforce(_facts: NodeFacts, daemon: DaemonFacts) -> CheckResults:
    """Judge what the daemon says of itself at /enforce."""
    report = daemon.enforcement
    if isinstance(report, str):
        yield not_applicable(report)
    else:
        does = "pins" if report.does == PIN else "observes what it would pin"
        yield from list(_hindrances(report)) or [ok(f"the daemon {does}")]


def _hindrances(document: EnforceDocument) -> CheckResults:
    if document.hindrance is not None:
        yield warn(
            f"the daemon is to pin, and observes: {document.hindrance}",
            "affinityd.service.d/enforce.conf for systemd, enforce.mode of the chart; or let it "
            "observe: AFFINITYD_ENFORCE=observe",
        )
    if document.policy.error is not None:
        yield warn(
            f"the policy {document.policy.file} does not count as it is: {document.policy.error}",
            "mend it: affinityd enforce --check FILE says whether it is one",
        )
    for notice in document.notices:
        yield warn(notice, "affinityd enforce says who is let alone meanwhile")
