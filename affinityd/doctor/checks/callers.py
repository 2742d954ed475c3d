"""Whether the daemon knows who asks: it plans within the cpuset of a caller that states none.

It is asked, as any job asks; what its process is kept from seeing is the cause where it does not
know. Sources: unix(7), SO_PEERCRED; pid_namespaces(7); proc(5); cgroups(7).
"""

from __future__ import annotations

from affinityd.cpuset import format_list
from affinityd.doctor.checks.confinement import hidepid
from affinityd.doctor.checks.daemon import REPLAYED
from affinityd.doctor.facts import CallerIdentification, DaemonFacts, NodeFacts
from affinityd.doctor.result import WARN, CheckResults, not_applicable, ok, warn
from affinityd.linux.mounts import Mount

KNOWN = "caller"  #: `allowed.source` of a plan for who is known

UNKNOWN = (
    "the daemon does not know who asks: jobs that state no cpuset are planned on all of the node"
)
NO_CAUSE = "its log says why: journalctl -u affinityd"


def caller(facts: NodeFacts) -> CheckResults:
    """Judge whether a daemon knows this process, which asks it for a plan."""
    daemon = facts.daemon
    if daemon is None:
        yield not_applicable(REPLAYED)
    elif daemon.identification is None:
        yield not_applicable(daemon.identification_error or "no daemon answers")
    elif daemon.identification.source != KNOWN and daemon.published and daemon.published.replayed:
        name = daemon.published.topology.name
        yield not_applicable(f"the daemon replays {name}, of which nobody's CPUs are known")
    elif daemon.identification.source != KNOWN:
        yield from _unknown(facts)
    elif daemon.identification.within is None and daemon.identification.cpuset is not None:
        yield from _mask_alone(facts, daemon, daemon.identification)
    else:
        within = (
            f" within its cpuset, CPUs {daemon.identification.within}"
            if daemon.identification.within
            else ""
        )
        yield ok(f"the daemon knows who asks: this process is planned{within}")


def _unknown(facts: NodeFacts) -> CheckResults:
    """Yield it with each cause that is to be seen."""
    causes = [it for it in hidepid(facts) if it.status == WARN]
    for cause in causes:
        yield warn(f"{UNKNOWN}: {cause.found}", cause.remedy or NO_CAUSE)
    if not causes:
        yield warn(UNKNOWN, NO_CAUSE)


def _mask_alone(facts: NodeFacts, daemon: DaemonFacts, told: CallerIdentification) -> CheckResults:
    seen = facts.mounts(daemon.pid) if daemon.pid else None
    has_none = seen is not None and not any(map(_has_cpusets, seen.values()))
    why = "no cgroups are mounted where it runs" if has_none else "it does not see its cgroup"
    yield warn(
        f"the daemon knows the mask of who asks, and no cpuset: {why}; this process has CPUs "
        f"{format_list(told.cpuset or ())}",
        "mount the node's /sys/fs/cgroup where it runs, as hostPID: true of the chart does; in a "
        "unit leave out InaccessiblePaths=/sys and the like",
    )


def _has_cpusets(mount: Mount) -> bool:
    return mount.kind == "cgroup2" or (mount.kind == "cgroup" and "cpuset" in mount.options)
