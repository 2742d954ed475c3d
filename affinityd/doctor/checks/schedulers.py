"""What the schedulers say of the GPUs, and what they confine jobs with.

Sources: gres.conf(5); kernel Documentation/admin-guide/cgroup-v2.rst (cgroup.controllers);
https://slurm.schedmd.com/cgroup_v2.html; proc(5) for mounts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from affinityd.discovery.tree import Tree
from affinityd.doctor.facts import NodeFacts
from affinityd.doctor.result import CheckResults, fail, not_applicable, ok, warn
from affinityd.errors import InvalidRequestError
from affinityd.linux.mounts import Mount
from affinityd.slurm.check import Check
from affinityd.slurm.check import Finding as Misfit
from affinityd.slurm.config.expected import Expected, Unknown
from affinityd.slurm.config.gres_files import default, read
from affinityd.slurm.config.gres_parser import Fault, Line
from affinityd.slurm.config.node_config import Configured, for_node
from affinityd.slurm.config.site import Site, open_site
from affinityd.slurm.machine.core_affinity import SCOPES
from affinityd.text import quote

CHECK = "affinityd slurm check"
OTHER = f"{CHECK} --node-name NAME looks for another, affinityd slurm gres-conf prints its lines"
SHOWN = 3  #: lines of gres.conf; more are counted

#: Where jobs' cgroups are made, below the root: names, and how deep they lie.
JOBS = ("slurmstepd.scope", "kubepods.slice", "kubepods")


def gres_conf(facts: NodeFacts) -> CheckResults:
    """Judge whether Slurm's gres.conf fits the node."""
    if facts.root is None:
        yield not_applicable("a shipped machine has no gres.conf")
        return
    site = open_site(facts.root, None, os.environ)
    try:
        file = default(Path(facts.root), beside=site.named)
    except InvalidRequestError as error:
        yield not_applicable(f"no Slurm: {str(error).partition(';')[0]}")
        return
    try:
        lines = list(read(file))
    except InvalidRequestError as error:
        yield fail(str(error), "let slurmd read it: it does not start without")
        return
    try:
        name = site.node_name(facts.topology.name, os.environ)
        expected = site.expected([name.name])
    except InvalidRequestError as error:
        yield fail(str(error), "write it as slurm.conf(5) has it")
        return
    configured = for_node((it for it in lines if isinstance(it, Line)), name.name)
    faults = [*(it for it in lines if isinstance(it, Fault)), *configured.faults]
    misfits: list[Misfit] = []
    if faults:
        yield fail(_told(faults), f"write them as gres.conf(5) has it; {CHECK} names them all")
    unnamed = list(_unnamed(facts, file, configured, site, expected))
    for found in unnamed:
        yield warn(found, f"this node was looked for as {name}; {OTHER}")
    if not (unnamed and _is_for_others(configured)):
        misfits = _misfits(facts, configured, expected)
    if misfits:
        yield warn(
            _told(misfits),
            f"affinityd slurm gres-conf prints right lines for {name}; {CHECK} names all",
        )
    if not faults and not unnamed and not misfits:
        yield ok(f"{file} fits the node")


def _unnamed(
    facts: NodeFacts, file: Path, configured: Configured, site: Site, expected: Expected | Unknown
) -> Iterator[str]:
    """Yield the files that have other nodes, and not this one, which has GPUs."""
    if not facts.topology.gpus:
        return
    if _is_for_others(configured):
        others = quote(", ".join(dict.fromkeys(configured.others)))
        yield f"{file} has lines of GPUs for {others}, and none for this node"
    if site.conf and isinstance(expected, Unknown):
        yield expected.why


def _is_for_others(configured: Configured) -> bool:
    return bool(configured.others) and not configured.gpus and configured.detector is None


def _misfits(
    facts: NodeFacts, configured: Configured, expected: Expected | Unknown
) -> list[Misfit]:
    """Return what is wrong, by NUMA node or by package: whichever way it was written."""
    known = expected if isinstance(expected, Expected) else None
    found = [Check(configured, facts.topology, scope, known).findings() for scope in SCOPES]
    return min(found, key=len)


def _told(wrong: list[Fault] | list[Misfit]) -> str:
    shown = [f"{it.place}: {it.text}" if it.place else it.text for it in wrong[:SHOWN]]
    more = [f"and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
    return "; ".join([*shown, *more])


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
