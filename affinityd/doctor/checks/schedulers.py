"""What the schedulers say of the GPUs, and what they confine jobs with.

Sources: gres.conf(5); kernel Documentation/admin-guide/cgroup-v2.rst (cgroup.controllers);
https://slurm.schedmd.com/cgroup_v2.html; proc(5) for mounts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from affinityd.discovery.tree import Tree
from affinityd.doctor.facts import NodeFacts
from affinityd.doctor.result import CheckResults, fail, not_applicable, ok, warn
from affinityd.errors import InvalidRequestError
from affinityd.linux.mounts import Mount
from affinityd.slurm.check import GresCheck
from affinityd.slurm.config import scontrol, slurmd
from affinityd.slurm.config.commands import FOLDERS, LocalSlurm, find_slurm
from affinityd.slurm.config.expected import ExpectedNode
from affinityd.slurm.machine.core_affinity import SCOPES

CHECK = "affinityd slurm check"
SHOWN = 3  #: findings; more are counted

#: Where jobs' cgroups are made, below the root: names, and how deep they lie.
JOBS = ("slurmstepd.scope", "kubepods.slice", "kubepods")


def gres_conf(facts: NodeFacts) -> CheckResults:
    """Judge whether the GPUs that slurmd has fit the node."""
    if facts.root is None or os.path.realpath(facts.root) != "/":
        yield not_applicable("a captured or shipped machine has no slurmd")
    elif facts.maintenance is not None:  # AutoDetect= has slurmd ask the driver
        yield not_applicable(f"slurmd was not asked: {facts.maintenance}")
    else:
        try:
            yield from _by_slurm(facts, find_slurm(None, is_live=True))
        except InvalidRequestError as error:
            yield not_applicable(str(error))


def _by_slurm(facts: NodeFacts, slurm: LocalSlurm | None) -> CheckResults:
    """Ask Slurm about the node. Raises InvalidRequestError where it cannot be asked."""
    if slurm is None:
        yield not_applicable(f"no Slurm: there is no slurm.conf in {', '.join(FOLDERS)}")
        return
    name = scontrol.node_name(slurm, facts.topology.name)
    expected = scontrol.expected_node(slurm, name)
    if isinstance(expected, ExpectedNode):
        yield from _of_gpus(facts, name, slurmd.ask(slurm, name), expected)
    elif facts.topology.gpus:
        yield warn(expected.why, f"this node was looked for as {name}; {CHECK} --node-name NAME")
    else:
        yield not_applicable(f"no node of Slurm: {expected.why}")


def _of_gpus(
    facts: NodeFacts, name: str, gres: slurmd.SlurmdGres, expected: ExpectedNode
) -> CheckResults:
    # By NUMA node or by package: whichever way it was written.
    found = [GresCheck(gres, facts.topology, scope, expected).findings() for scope in SCOPES]
    misfits = min(found, key=len)
    if gres.faults:
        yield fail(_listed(gres.faults), f"write it as gres.conf(5) has it; {CHECK} names all")
    if misfits:
        yield warn(
            _listed(list(map(str, misfits))),
            f"affinityd slurm gres-conf prints right lines for {name}; {CHECK} names all",
        )
    if not gres.faults and not misfits:
        yield ok("gres.conf fits the node")


def _listed(wrong: Sequence[str]) -> str:
    more = [f"and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
    return "; ".join([*wrong[:SHOWN], *more])


def cgroup(facts: NodeFacts) -> CheckResults:
    """Tell the version of cgroups, and judge whether it can keep jobs on their CPUs."""
    mounted = (facts.mounts("self") or {}).values()
    found = [it for it in mounted if it.kind.startswith("cgroup")]
    v1 = next((it for it in found if it.kind == "cgroup" and "cpuset" in it.options), None)
    v2 = next((it for it in found if it.kind == "cgroup2"), None)
    has_v1 = any(it.kind == "cgroup" for it in found)
    if not found:
        yield not_applicable("no cgroup is mounted, as far as /proc/self/mountinfo says")
    elif v1:
        kind = "hybrid" if v2 else "v1"
        yield ok(f"cgroup {kind}: the cpuset controller is v1's, at {v1.point}")
    elif v2 is None or "cpuset" not in _controllers(facts.tree, v2.point):
        yield warn(
            f"cgroup {'hybrid' if has_v1 and v2 else 'v2' if v2 else 'v1'}: no cpuset controller; "
            "no scheduler can keep jobs on their CPUs, and the daemon does not see what it may use",
            "boot without cgroup_disable=cpuset; under v1 mount it: mount -t cgroup -o cpuset",
        )
    else:
        yield from _second(facts, v2)


def _second(facts: NodeFacts, v2: Mount) -> CheckResults:
    """Yield what is to be said of version 2."""
    scopes = list(_scopes(facts.tree, v2.point))
    for scope in scopes:
        if "cpuset" not in _controllers(facts.tree, scope):
            above = scope.rpartition("/")[0]
            yield warn(
                f"cgroup v2: {scope}/cgroup.controllers has no cpuset: jobs are not kept on their "
                "CPUs",
                f"echo +cpuset > {above}/cgroup.subtree_control; for good, Slurm: Delegate=yes in "
                "slurmd's unit and ConstrainCores=yes in cgroup.conf, Kubernetes: restart the "
                "kubelet, which enables it",
                facts.topology.gpus,
            )
    if all("cpuset" in _controllers(facts.tree, scope) for scope in scopes):
        known = ", ".join(scopes) or "no job of Slurm or Kubernetes"
        yield ok(f"cgroup v2, cpuset controller enabled ({known})")


def _controllers(tree: Tree, folder: str) -> list[str]:
    return (tree.read(f"{folder.lstrip('/')}/cgroup.controllers") or "").split()


def _scopes(tree: Tree, point: str) -> Iterator[str]:
    """Yield where jobs' cgroups lie: at the top, or in a slice as system.slice."""
    names = tree.list(point.lstrip("/"))
    for folder in (point, *(f"{point}/{name}" for name in names if name.endswith(".slice"))):
        for name in tree.list(folder.lstrip("/")):
            if name.endswith(JOBS):
                yield f"{folder}/{name}"
