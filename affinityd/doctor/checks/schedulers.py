"""The schedulers' configuration of GPUs, and how they confine jobs.

Sources: gres.conf(5); kernel Documentation/admin-guide/cgroup-v2.rst (cgroup.controllers);
https://slurm.schedmd.com/cgroup_v2.html; proc(5) for mounts.
"""

from __future__ import annotations

from collections.abc import Iterator

from affinityd.discovery.tree import Tree
from affinityd.doctor.facts import CheckResults, NodeFacts, NotApplicableError, fail, ok, warn
from affinityd.slurm.check import counts, differences
from affinityd.slurm.commands import FOLDERS, SlurmError, find_slurm
from affinityd.slurm.cores import SCOPES
from affinityd.slurm.gres_conf import GresConf

CHECK = "affinityd slurm check"
SHOWN = 3  #: findings; more are counted

#: The places of jobs' cgroups, below the root: names, and depths.
JOBS = ("slurmstepd.scope", "kubepods.slice", "kubepods")


def gres_conf(facts: NodeFacts) -> CheckResults:
    """Judge whether the GPUs that slurmd has are the node's."""
    if not facts.tree.live:
        raise NotApplicableError("a captured or built-in machine has no slurmd")
    if facts.maintenance is not None:  # AutoDetect= has slurmd ask the driver
        raise NotApplicableError(f"slurmd was not asked: {facts.maintenance}")
    slurm = find_slurm(None, is_live=True)
    if slurm is None:
        raise NotApplicableError(f"no Slurm: there is no slurm.conf in {', '.join(FOLDERS)}")
    name = slurm.node_name(facts.topology.name)
    try:
        node, slurmd = slurm.nodes(name)[0], slurm.slurmd_gres(name)
    except SlurmError as error:
        if not facts.topology.gpus:
            raise NotApplicableError(f"not a node of Slurm: {error}") from None
        yield warn(str(error), f"{CHECK} --node-name NAME, if the node's name is not {name}")
        return
    # By NUMA node or by package: whichever way it was written.
    conf = min(
        (GresConf(facts.topology, scope, node.configured, slurmd.types) for scope in SCOPES),
        key=lambda conf: len([*differences(conf, slurmd)]),
    )
    findings = [*differences(conf, slurmd), *counts(conf, node), *([f"{node}"] * node.is_refused)]
    more = [f"and {len(findings) - SHOWN} more"] if len(findings) > SHOWN else []
    text = "; ".join([*findings[:SHOWN], *more])
    if not slurmd.is_complete:
        yield fail(text, f"write it as in gres.conf(5); {CHECK} lists everything")
    elif findings:
        prints = f"affinityd slurm gres-conf prints right lines for {name}"
        yield warn(text, f"{prints}; {CHECK} lists everything")
    yield ok("gres.conf fits the node")


def cgroup(facts: NodeFacts) -> CheckResults:
    """Tell the version of cgroups, and judge whether it can keep jobs on their CPUs."""
    mounts = [mount for mount in facts.mounts("self").values() if mount.kind.startswith("cgroup")]
    if not mounts:
        raise NotApplicableError("no cgroup is mounted, by /proc/self/mountinfo")
    v2 = next((mount for mount in mounts if mount.kind == "cgroup2"), None)
    v1 = [mount for mount in mounts if mount.kind == "cgroup"]
    version = "hybrid" if v1 and v2 else "v2" if v2 else "v1"
    with_cpusets = next((mount for mount in v1 if "cpuset" in mount.options), None)
    if with_cpusets:
        yield ok(f"cgroup {version}: the cpuset controller is v1's, at {with_cpusets.point}")
    elif v2 is None or "cpuset" not in _controllers(facts.tree, v2.point):
        yield warn(
            f"cgroup {version}: no cpuset controller; no scheduler can confine jobs to "
            "CPUs, and the daemon cannot read cpusets",
            "boot without cgroup_disable=cpuset; under v1 mount it: mount -t cgroup -o cpuset",
        )
    else:
        scopes = list(_scopes(facts.tree, v2.point))
        for scope in scopes:
            if "cpuset" not in _controllers(facts.tree, scope):
                above = scope.rpartition("/")[0]
                yield warn(
                    f"cgroup v2: {scope}/cgroup.controllers has no cpuset: jobs are not confined "
                    "to their CPUs",
                    f"echo +cpuset > {above}/cgroup.subtree_control; permanently, Slurm: "
                    "Delegate=yes in slurmd's unit and ConstrainCores=yes in cgroup.conf, "
                    "Kubernetes: restart kubelet, which enables it",
                    facts.topology.gpus,
                )
        named = ", ".join(scopes) or "no job of Slurm or Kubernetes"
        yield ok(f"cgroup v2, cpuset controller enabled ({named})")


def _controllers(tree: Tree, folder: str) -> list[str]:
    return (tree.read(f"{folder.lstrip('/')}/cgroup.controllers") or "").split()


def _scopes(tree: Tree, point: str) -> Iterator[str]:
    """Yield the places of jobs' cgroups: at the top, or in a slice as system.slice."""
    names = tree.list(point.lstrip("/"))
    for folder in (point, *(f"{point}/{name}" for name in names if name.endswith(".slice"))):
        for name in tree.list(folder.lstrip("/")):
            if name.endswith(JOBS):
                yield f"{folder}/{name}"
