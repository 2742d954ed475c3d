"""The checks of what schedulers say of GPUs, and confine jobs with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.discovery.tree import FolderTree
from affinityd.doctor.facts import NO_ROOT, NodeFacts
from affinityd.topology.model import Topology
from tests.support.doctor_facts import TWO, Files, check, facts_of
from tests.support.machines.by_hand import made
from tests.support.recorded_slurm import recorded_slurm


def with_files(node: Topology) -> Topology:
    return replace(node, gpus=tuple(replace(gpu, minor=gpu.index) for gpu in node.gpus))


PACKAGES = {0: "0-3", 1: "4-7"}
NODE = with_files(made(PACKAGES, gpus=[0, 1], packages=PACKAGES))
#: A package of two nodes.
HALVES = with_files(made({0: "0-1", 1: "2-3", 2: "4-7"}, gpus=[0, 2], packages=PACKAGES))

RIGHT = "Name=gpu File=/dev/nvidia0 Cores=0-3\nName=gpu File=/dev/nvidia1 Cores=4-7"
CROSSED = "Name=gpu File=/dev/nvidia0 Cores=4-7\nName=gpu File=/dev/nvidia1 Cores=0-3"


def live(facts: NodeFacts) -> NodeFacts:
    assert isinstance(facts.tree, FolderTree)
    return replace(facts, tree=FolderTree(facts.tree.root, facts.tree.name, live=True))


def facts_with(
    gres: str, lines: str, node: Topology, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> NodeFacts:
    """Return the facts of a node, gpu07 to Slurm, of which slurmd has these lines."""
    slurm = recorded_slurm(folder / "slurm", monkeypatch)
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    slurm.is_called("gpu07")
    slurm.expects(gres, "gpu07")
    slurm.has(lines)
    return live(facts_of(folder / "node", node))


FITS = "ok: gres.conf fits the node"
GARBAGE = 'error: Parse error in file gres.conf line 3: "foo"\nfatal: error reading gres.conf'
MISSING = "\n".join(f"Name=gpu File=/dev/nvidia{number}" for number in range(2, 9))
MISTYPED = RIGHT.replace("gpu ", "gpu Type=A100 ", 1).replace("gpu F", "gpu Type=a100 F")


@pytest.mark.parametrize(
    ("node", "lines", "expected"),
    [
        (NODE, RIGHT, FITS),
        (HALVES, RIGHT.replace("0-3", "0-1"), FITS),
        (NODE, CROSSED, "warn: gpu 0: Slurm has Cores=4-7; → affinityd slurm gres-conf prints"),
        (NODE, GARBAGE, 'fail: gres.conf line 3: "foo" → gres.conf(5)'),
        (NODE, MISSING, "warn: ; and 6 more → affinityd slurm check lists everything"),
        (NODE, MISTYPED, "warn: gpu 0: Slurm has Type=A100; → for gpu07"),
    ],
)
def test_gres_conf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: Topology, lines: str, expected: str
) -> None:
    gres = "gpu:a100:2" if "a100" in lines else "gpu:2"
    check("gres-conf", facts_with(gres, lines, node, tmp_path, monkeypatch), expected)


def test_gres_conf_is_not_checked_without_slurm_on_a_replay_or_during_driver_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    replayed, here = facts_of(tmp_path), live(facts_of(tmp_path))
    shipped = NodeFacts(TWO, FolderTree(NO_ROOT, "shipped"))
    for facts in (replayed, shipped):
        check("gres-conf", facts, "n/a: a captured or built-in machine has no slurmd")
    held = replace(here, maintenance="NVML is not asked")
    check("gres-conf", held, "n/a: slurmd was not asked: NVML is not asked")
    check("gres-conf", here, "n/a: no Slurm: there is no slurm.conf in /etc/slurm, ")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "gone"))
    check("gres-conf", here, "n/a: gone is not a file")


V1 = "34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset"
V1_MEMORY = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
V2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw"
UNIFIED = "36 31 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
TOP = "sys/fs/cgroup/cgroup.controllers"
SLURM = "sys/fs/cgroup/system.slice/node7_slurmstepd.scope/cgroup.controllers"
PODS = "sys/fs/cgroup/kubepods.slice/cgroup.controllers"
V1_AND_V2 = f"{V1}\n{UNIFIED}"
SET, UNSET = "cpuset cpu", "cpu memory"
CONTROL = "cgroup.subtree_control"
NOT_FOR_SLURM = f"warn 0-1: /{SLURM} has no → > /sys/fs/cgroup/system.slice/{CONTROL}"
NOT_FOR_PODS = f"warn 0-1: /{PODS} has no cpuset → +cpuset > /sys/fs/cgroup/{CONTROL}"


@pytest.mark.parametrize(
    ("mounts", "files", "expected"),
    [
        ("22 28 0:21 / /proc rw - proc proc rw", {}, "n/a: no cgroup is mounted"),
        (V1, {}, "ok: cgroup v1: the cpuset controller is v1's, at /sys/fs/cgroup/cpus"),
        (V1_AND_V2, {}, "ok: cgroup hybrid: the cpuset controller is v1's"),
        (V1_MEMORY, {}, "warn: cgroup v1: no cpuset → mount -t cgroup -o cpuset"),
        (V2, {TOP: UNSET}, "warn: cgroup v2: no cpuset → boot without"),
        (V2, {TOP: SET}, "ok: enabled (no job of Slurm or Kubernetes)"),
        (V2, {TOP: SET, SLURM: SET, PODS: SET}, "ok: kubepods.slice"),
        (V2, {TOP: SET, SLURM: UNSET, PODS: SET}, NOT_FOR_SLURM),
        (V2, {TOP: SET, PODS: UNSET}, NOT_FOR_PODS),
    ],
)
def test_cgroups(tmp_path: Path, mounts: str, files: Files, expected: str) -> None:
    check("cgroup", facts_of(tmp_path, TWO, {"proc/self/mountinfo": mounts, **files}), expected)
