"""Whether the daemon's surroundings keep from it what makes a GPU node: device files, and users.

Sources: systemd.exec(5) for PrivateDevices= and PrivateUsers=; user_namespaces(7) for uid_map.
"""

from __future__ import annotations

from collections.abc import Mapping

from affinityd.doctor.checks.daemon import REPLAYED
from affinityd.doctor.facts import NodeFacts
from affinityd.doctor.result import CheckResults, not_applicable, ok, warn
from affinityd.linux.mounts import Mount

ROOT, DEVICES = "/", "/dev"
PRIVATE = "tmpfs"  #: what systemd mounts at /dev, and what a container has there


def sandbox(facts: NodeFacts) -> CheckResults:
    """Judge whether the daemon has the device files, and the users, of this machine."""
    daemon = facts.daemon
    if daemon is None or daemon.pid is None:
        yield not_applicable("no daemon's process is seen" if daemon else REPLAYED)
        return
    pid = daemon.pid
    wrong = [*_devices(facts, pid), *_users(facts, pid)]
    yield from wrong or [
        ok(f"the daemon (process {pid}) has the users and devices of this machine")
    ]


def _devices(facts: NodeFacts, pid: int) -> CheckResults:
    """Yield that systemd gave it a /dev without GPUs. A container's is its runtime's affair."""
    theirs, ours = (facts.mounts(it) or {} for it in (pid, "self"))
    is_container = _kind(theirs, ROOT) != _kind(ours, ROOT)
    is_private = _kind(theirs, DEVICES) == PRIVATE and theirs[DEVICES] != ours.get(DEVICES)
    if is_private and not is_container:
        yield warn(
            f"the daemon (process {pid}) has a /dev of its own, without the files of GPUs: NVML "
            "does not answer it, and who holds such a file is not found",
            "take PrivateDevices= from its unit; DevicePolicy= and DeviceAllow= are there for that",
        )


def _users(facts: NodeFacts, pid: int) -> CheckResults:
    theirs, ours = (facts.tree.read(f"proc/{it}/uid_map") for it in (pid, "self"))
    if theirs is not None and theirs.split() != (ours or "").split():
        yield warn(
            f"the daemon (process {pid}) is in a user namespace of its own: users that it does not "
            "map look like nobody, and /audit tells them counts alone",
            "take PrivateUsers= from its unit; hostUsers: true in its pod, podman run without "
            "--userns",
        )


def _kind(mounted: Mapping[str, Mount], point: str) -> str | None:
    return mounted[point].kind if point in mounted else None
