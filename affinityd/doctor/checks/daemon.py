"""Whether all users' jobs reach the daemon, and its answers: plans, and enforcement.

It plans within the cpuset of a caller that states none, and is asked here as any job asks; what its
process is kept from seeing is the cause where it does not know. Sources: unix(7), for connect(2)
and SO_PEERCRED; pid_namespaces(7); proc(5); cgroups(7).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from affinityd.config.settings import PIN
from affinityd.cpuset import format_list
from affinityd.doctor.checks.daemon_process import hidepid
from affinityd.doctor.facts import DaemonFacts, NodeFacts
from affinityd.doctor.result import (
    WARN,
    CheckResults,
    NotApplicableError,
    concluded,
    fail,
    ok,
    warn,
)
from affinityd.linux.cgroup import Mount
from affinityd.topology import node_file
from affinityd.topology.model import Node, Topology

READY = 200  #: HTTP's status of /readyz once it can plan
UNREADY = 503
KNOWN = "caller"  #: `allowed.source` of a plan for a caller that is identified
UNKNOWN = (
    "the daemon cannot identify callers: jobs that state no cpuset are planned on the whole node"
)


def socket(facts: NodeFacts) -> CheckResults:
    """Judge whether a daemon answers, every user reaches it, and node.json tells of this node."""
    daemon = facts.own_daemon()
    if daemon.absent:
        raise NotApplicableError(
            f"no daemon listens at {' or '.join(daemon.absent)}, and none is needed: affinityd "
            "exec and bind plan by themselves; if it listens elsewhere, name it with --socket"
        )
    yield from _silence(daemon)
    if daemon.open_mode is not None:
        folder = Path(daemon.path).parent
        yield warn(
            f"others may put a socket into {folder}, which is {daemon.open_mode:04o}",
            f"chmod 755 {folder}; in the unit RuntimeDirectoryMode=0755",
        )
    if daemon.closed:
        yield warn(
            f"not all users' jobs reach {daemon.path}: {', '.join(daemon.closed)}",
            "chmod 755 the folders and 666 the socket; in the unit RuntimeDirectoryMode=0755",
        )
    yield from _node_file(daemon, facts.topology)
    yield ok(f"{daemon.path} answers (process {daemon.pid or 'unknown'})")


def _silence(daemon: DaemonFacts) -> CheckResults:
    if daemon.is_denied:
        yield fail(
            f"this user may not connect to {daemon.path}: {daemon.error}",
            "let every user reach it: chmod 755 the folders and 666 the socket; or affinityd "
            "doctor as root",
        )
    elif not daemon.listens:
        yield fail(
            f"no daemon at {daemon.path}: {daemon.error}",
            "systemctl enable --now affinityd, or affinityd serve as root; --socket names another",
        )
    elif daemon.status == UNREADY:
        yield fail(
            f"the daemon at {daemon.path} has not read the machine yet",
            "wait some seconds; then see why: journalctl -u affinityd",
        )
    elif daemon.status != READY:
        yield fail(
            (
                f"the server at {daemon.path} (process {daemon.pid or 'unknown'}) is not a "
                f"ready daemon: {daemon.error or f'it answered {daemon.status}'}"
            ),
            "systemctl restart affinityd, or end the process that listens there",
        )


def _node_file(daemon: DaemonFacts, topology: Topology) -> CheckResults:
    file, node = Path(daemon.path).with_name(node_file.NAME), daemon.published
    if not isinstance(node, str):
        stale = _difference(node.topology, topology) or ("it was replayed" if node.replayed else "")
        if stale:
            yield warn(
                f"{file} is of another machine, or out of date: {stale}",
                "run a replaying daemon on a socket in a folder of its own"
                if node.replayed
                else "systemctl reload affinityd, or remove the file where no daemon runs",
            )
    elif daemon.listens:
        yield warn(
            f"{file}: {node}: ranks cannot plan from it while the daemon does not run",
            "let the daemon write to its folder, then systemctl reload affinityd",
        )


def _difference(published: Topology, here: Topology) -> str:
    """Return a difference of a published node from this one that changes plans; "" for none."""
    its, ours = (
        {
            "name": it.name,
            "online CPUs": format_list(it.online),
            "GPUs": ", ".join(gpu.pci_bus_id for gpu in it.gpus) or "none",
        }
        for it in (published, here)
    )
    texts = (
        f"its {what}: {its[what]}, here: {ours[what]}" for what in its if its[what] != ours[what]
    )
    return next(texts, "")


def caller(facts: NodeFacts) -> CheckResults:
    """Judge whether a daemon identifies this process by its request."""
    daemon = facts.own_daemon()
    allowed, published = daemon.allowed, daemon.published
    if isinstance(allowed, str):
        raise NotApplicableError(allowed)
    if allowed.source != KNOWN:
        if isinstance(published, Node) and published.replayed:
            name = published.topology.name
            raise NotApplicableError(f"the daemon replays {name}, where no caller's CPUs are known")
        causes = [it for it in concluded(hidepid(facts)) if it.status == WARN]
        yield from (replace(it, found=f"{UNKNOWN}: {it.found}") for it in causes)
        if not causes:
            yield warn(UNKNOWN, "its log says why: journalctl -u affinityd")
    elif allowed.within is None and daemon.own_cpuset is not None:
        mounts = facts.mounts(daemon.pid) if daemon.pid else {}
        has_none = mounts and not any(map(_has_cpusets, mounts.values()))
        why = "no cgroups are mounted where it runs" if has_none else "it cannot see its cgroup"
        yield warn(
            (
                f"the daemon knows the caller's mask, and not its cpuset: {why}; this process "
                f"has CPUs {format_list(daemon.own_cpuset)}"
            ),
            "mount the node's /sys/fs/cgroup where it runs, as hostPID: true of the chart does; in "
            "a unit leave out InaccessiblePaths=/sys and the like",
        )
    else:
        within = f" within its cpuset, CPUs {allowed.within}" if allowed.within else ""
        yield ok(f"the daemon identifies callers: this process is planned{within}")


def _has_cpusets(mount: Mount) -> bool:
    return mount.kind == "cgroup2" or (mount.kind == "cgroup" and "cpuset" in mount.options)


def enforce(facts: NodeFacts) -> CheckResults:
    """Judge the daemon's answer at /enforce."""
    report = facts.own_daemon().enforcement
    if isinstance(report, str):
        raise NotApplicableError(report)
    if report.hindrance is not None:
        yield warn(
            f"the daemon was told to pin, and can only observe: {report.hindrance}",
            "affinityd.service.d/enforce.conf for systemd, enforce.mode of the chart; or let it "
            "observe: AFFINITYD_ENFORCE=observe",
        )
    if report.policy.error is not None:
        yield warn(
            f"the policy {report.policy.file} has an error: {report.policy.error}",
            "correct it, and check it with affinityd enforce --check FILE",
        )
    for notice in report.notices:
        yield warn(notice, "affinityd enforce says which processes are left alone meanwhile")
    yield ok(f"the daemon {'pins' if report.does == PIN else 'observes what it would pin'}")
