"""Whether the daemon is there for every user, and node.json beside it tells of this node.

Source: unix(7), for what connect(2) takes.
"""

from __future__ import annotations

from pathlib import Path

from affinityd.cpuset import format_list
from affinityd.doctor.conditions import of_daemon
from affinityd.doctor.facts import DaemonFacts, NodeFacts
from affinityd.doctor.result import CheckResults, fail, not_applicable, ok, warn
from affinityd.topology import node_file
from affinityd.topology.model import Topology
from affinityd.topology.node import Node

READY = 200  #: HTTP's status of /readyz once it can plan
UNREADY = 503


@of_daemon
def socket(facts: NodeFacts, daemon: DaemonFacts) -> CheckResults:
    """Judge whether a daemon answers, every user reaches it, and node.json tells of this node."""
    if daemon.absent:
        yield not_applicable(
            f"no daemon listens at {' or '.join(daemon.absent)}, and none is needed: affinityd "
            "exec and bind plan by themselves; --socket names another"
        )
        return
    wrong = [
        *_silence(daemon),
        *_distrusted(daemon),
        *_closed(daemon),
        *_node_file(daemon, facts.topology),
    ]
    yield from wrong or [ok(f"{daemon.path} answers (process {daemon.pid or 'unknown'})")]


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
        said = daemon.error or f"it answered {daemon.status}"
        who = f"what listens at {daemon.path} (process {daemon.pid or 'unknown'})"
        yield fail(
            f"{who} is no ready daemon: {said}",
            "systemctl restart affinityd, or end what listens there",
        )


def _distrusted(daemon: DaemonFacts) -> CheckResults:
    if daemon.distrust:
        yield fail(
            f"clients pass over it, and plan by themselves: {daemon.distrust}",
            "run it as root, in folders that root alone may write to (RuntimeDirectory= of the "
            "unit), or set AFFINITYD_DAEMON_UID in /etc/affinityd.conf and in jobs",
        )


def _closed(daemon: DaemonFacts) -> CheckResults:
    if daemon.closed:
        yield warn(
            f"not every user's job reaches {daemon.path}: {', '.join(daemon.closed)}",
            "chmod 755 the folders and 666 the socket; in the unit RuntimeDirectoryMode=0755",
        )


def _node_file(daemon: DaemonFacts, topology: Topology) -> CheckResults:
    file = Path(daemon.path).with_name(node_file.NAME)
    node = daemon.published
    if isinstance(node, str):
        if daemon.listens:
            yield warn(
                f"{file}: {node}: ranks cannot plan from it while the daemon is away",
                "let the daemon write to its folder, then systemctl reload affinityd",
            )
        return
    stale = _difference(node, topology) or ("it was replayed" if node.replayed else None)
    if stale:
        yield warn(
            f"{file} is of another machine, or out of date: {stale}",
            "systemctl reload affinityd, or remove the file where no daemon runs"
            if not node.replayed
            else "run a replaying daemon on a socket in a folder of its own",
        )


def _difference(node: Node, topology: Topology) -> str | None:
    """Return how a published node differs from this one, in what plans hang on."""
    its, here = node.topology, topology
    pairs = {
        "name": (its.name, here.name),
        "online CPUs": (format_list(its.online), format_list(here.online)),
        "GPUs": tuple(", ".join(gpu.pci_bus_id for gpu in it.gpus) or "none" for it in (its, here)),
    }
    texts = (
        f"its {what}: {theirs}, here: {ours}"
        for what, (theirs, ours) in pairs.items()
        if theirs != ours
    )
    return next(texts, None)
