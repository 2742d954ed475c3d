"""Whether the daemon knows who asks: it plans within the cpuset of a caller that states none.

It is asked, as any job asks; what its process is kept from seeing is the cause where it does not
know. Sources: unix(7), SO_PEERCRED; pid_namespaces(7); proc(5); cgroups(7).
"""

from __future__ import annotations

from affinityd.cpuset import format_list
from affinityd.doctor.checks.confinement import hidepid
from affinityd.doctor.checks.daemon import REPLAYED
from affinityd.doctor.facts import Daemon, Facts, Told
from affinityd.doctor.finding import WARN, Findings, not_applicable, ok, warn
from affinityd.doctor.mounts import Mount, mounts

KNOWN = "caller"  #: `allowed.source` of a plan for who is known

UNKNOWN = (
    "the daemon does not know who asks: jobs that state no cpuset are planned on all of the node"
)
NO_CAUSE = "its log says why: journalctl -u affinityd"


def caller(facts: Facts) -> Findings:
    """Judge whether a daemon knows this process, which asks it for a plan."""
    daemon = facts.daemon
    if daemon is None:
        yield not_applicable(REPLAYED)
    elif daemon.told is None:
        yield not_applicable(daemon.untold or "no daemon answers")
    elif daemon.told.source != KNOWN and daemon.published and daemon.published.replayed:
        name = daemon.published.topology.name
        yield not_applicable(f"the daemon replays {name}, of which nobody's CPUs are known")
    elif daemon.told.source != KNOWN:
        yield from _unknown(facts)
    elif daemon.told.within is None and daemon.told.cpuset is not None:
        yield from _mask_alone(facts, daemon, daemon.told)
    else:
        within = f" within its cpuset, CPUs {daemon.told.within}" if daemon.told.within else ""
        yield ok(f"the daemon knows who asks: this process is planned{within}")


def _unknown(facts: Facts) -> Findings:
    """Yield it with each cause that is to be seen."""
    causes = [it for it in hidepid(facts) if it.status == WARN]
    for cause in causes:
        yield warn(f"{UNKNOWN}: {cause.found}", cause.remedy or NO_CAUSE)
    if not causes:
        yield warn(UNKNOWN, NO_CAUSE)


def _mask_alone(facts: Facts, daemon: Daemon, told: Told) -> Findings:
    seen = mounts(facts.tree, str(daemon.pid)) if daemon.pid else None
    has_none = seen is not None and not any(map(_has_cpusets, seen))
    why = "no cgroups are mounted where it runs" if has_none else "it does not see its cgroup"
    yield warn(
        f"the daemon knows the mask of who asks, and no cpuset: {why}; this process has CPUs "
        f"{format_list(told.cpuset or ())}",
        "mount the node's /sys/fs/cgroup where it runs, as hostPID: true of the chart does; in a "
        "unit leave out InaccessiblePaths=/sys and the like",
    )


def _has_cpusets(mount: Mount) -> bool:
    return mount.kind == "cgroup2" or (mount.kind == "cgroup" and "cpuset" in mount.options)
