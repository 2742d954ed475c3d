"""The checks of what schedulers say of GPUs, and confine jobs with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.discovery import open_tree
from affinityd.discovery.tree import FolderTree
from affinityd.doctor.checks.registry import run_checks
from affinityd.doctor.facts import NO_ROOT, NodeFacts
from affinityd.topology.model import Topology
from tests.support.doctor_facts import NO_GPU, TWO, Expected, Files, check, facts_of, n_a, well
from tests.support.machines.by_hand import made
from tests.support.recorded_slurm import recorded_slurm

#: A package a node, and device files.
PACKAGES = {0: "0-3", 1: "4-7"}
NODE = made(PACKAGES, gpus=[0, 1], packages=PACKAGES)
NODE = replace(NODE, gpus=tuple(replace(gpu, minor=gpu.index) for gpu in NODE.gpus))
#: A package of two nodes.
HALVES = made({0: "0-1", 1: "2-3", 2: "4-7"}, gpus=[0, 2], packages=PACKAGES)
HALVES = replace(HALVES, gpus=tuple(replace(gpu, minor=gpu.index) for gpu in HALVES.gpus))

RIGHT = "Name=gpu File=/dev/nvidia0 Cores=0-3\nName=gpu File=/dev/nvidia1 Cores=4-7"
TYPED = RIGHT.replace("gpu ", "gpu Type=a100 ")
CROSSED = "Name=gpu File=/dev/nvidia0 Cores=4-7\nName=gpu File=/dev/nvidia1 Cores=0-3"


def live(facts: NodeFacts) -> NodeFacts:
    """Return facts as of this machine."""
    assert isinstance(facts.tree, FolderTree)
    return replace(facts, tree=replace(facts.tree, live=True))


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


@pytest.mark.parametrize(
    ("gres", "lines", "expected"),
    [
        ("gpu:2", RIGHT, [well("gres.conf fits the node")]),
        ("gpu:a100:2", TYPED, [well("gres.conf fits the node")]),
        (
            "gpu:2",
            CROSSED,
            [Expected("warn", "gpu 0: Cores=4-7 is", "affinityd slurm gres-conf prints right")],
        ),
        (
            "gpu:2",
            'error: Parse error in file gres.conf line 3: "foo"\nfatal: error reading gres.conf',
            [Expected("fail", 'gres.conf line 3: "foo"', "gres.conf(5)")],
        ),
        (
            "gpu:2",
            "\n".join(f"Name=gpu File=/dev/nvidia{number}" for number in range(2, 9)),
            [Expected("warn", "; and 6 more", "affinityd slurm check names all")],
        ),
        (
            "gpu:a100:2",
            TYPED.replace("a100", "A100", 1),
            [Expected("warn", "drains the node (INVALID_REG); right is Type=a100", "for gpu07")],
        ),
    ],
    ids=["it fits", "types fit", "crossed", "no line", "much is wrong", "another type"],
)
def test_gres_conf(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gres: str,
    lines: str,
    expected: list[Expected],
) -> None:
    check("gres-conf", facts_with(gres, lines, NODE, tmp_path, monkeypatch), *expected)


def test_a_node_that_slurm_does_not_have_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = facts_with("gpu:2", RIGHT, NODE, tmp_path, monkeypatch)
    for name in ("slurm.conf", "nodes"):
        (tmp_path / "slurm" / name).write_text("")
    looked_for = "this node was looked for as gpu07; affinityd slurm check --node-name NAME"
    check("gres-conf", facts, Expected("warn", "scontrol show node gpu07: ", looked_for))
    no_gpu = replace(facts, topology=NO_GPU)
    check("gres-conf", no_gpu, n_a("no node of Slurm: scontrol show node gpu07: "))


def test_cores_of_packages_are_as_right_as_those_of_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, cores in enumerate(("0-3", "0-1")):
        lines = RIGHT.replace("0-3", cores)
        facts = facts_with("gpu:2", lines, HALVES, tmp_path / str(number), monkeypatch)
        check("gres-conf", facts, well("gres.conf fits the node"))


def test_without_slurm_there_is_nothing_to_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    check("gres-conf", facts_of(tmp_path), n_a("a captured or shipped machine has no slurmd"))
    check(
        "gres-conf",
        live(facts_of(tmp_path)),
        n_a("no Slurm: there is no slurm.conf in /etc/slurm, "),
    )
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "gone"))
    check("gres-conf", live(facts_of(tmp_path)), n_a("gone is no file"))
    shipped = NodeFacts(TWO, FolderTree(NO_ROOT, "shipped"))
    check("gres-conf", shipped, n_a("a captured or shipped machine has no slurmd"))


V1 = "34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset"
V1_MEMORY = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
V2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw"
UNIFIED = "36 31 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
TOP = "sys/fs/cgroup/cgroup.controllers"
SLURM = "sys/fs/cgroup/system.slice/node7_slurmstepd.scope/cgroup.controllers"
PODS = "sys/fs/cgroup/kubepods.slice/cgroup.controllers"


@pytest.mark.parametrize(
    ("mounts", "files", "expected"),
    [
        ("22 28 0:21 / /proc rw - proc proc rw", {}, [n_a("no cgroup is mounted")]),
        (V1, {}, [well("cgroup v1: the cpuset controller is v1's, at /sys/fs/cgroup/cpus")]),
        (f"{V1}\n{UNIFIED}", {}, [well("cgroup hybrid: the cpuset controller is v1's")]),
        (V1_MEMORY, {}, [Expected("warn", "cgroup v1: no cpuset", "mount -t cgroup -o cpuset")]),
        (V2, {TOP: "cpu io memory"}, [Expected("warn", "cgroup v2: no cpuset", "boot without")]),
        (V2, {TOP: "cpuset cpu"}, [well("enabled (no job of Slurm or Kubernetes)")]),
        (
            V2,
            {TOP: "cpuset cpu", SLURM: "cpuset cpu", PODS: "cpuset memory"},
            [well("kubepods.slice")],
        ),
        (
            V2,
            {TOP: "cpuset cpu", SLURM: "cpu memory", PODS: "cpuset memory"},
            [
                Expected(
                    "warn",
                    "/sys/fs/cgroup/system.slice/node7_slurmstepd.scope/cgroup.controllers has no",
                    "echo +cpuset > /sys/fs/cgroup/system.slice/cgroup.subtree_control",
                    (0, 1),
                )
            ],
        ),
        (
            V2,
            {TOP: "cpuset cpu", PODS: "memory"},
            [
                Expected(
                    "warn",
                    "/sys/fs/cgroup/kubepods.slice/cgroup.controllers has no cpuset",
                    "echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control",
                    (0, 1),
                )
            ],
        ),
    ],
    ids=[
        "none is mounted",
        "v1",
        "hybrid",
        "v1 without cpusets",
        "v2 without cpusets",
        "v2, and no jobs yet",
        "v2 with jobs that have cpusets",
        "v2 with Slurm's that have none",
        "v2 with pods that have none",
    ],
)
def test_cgroups(tmp_path: Path, mounts: str, files: Files, expected: list[Expected]) -> None:
    facts = facts_of(tmp_path, TWO, {"proc/self/mountinfo": mounts, **files})
    check("cgroup", facts, *expected)


def test_this_machine_has_some_version_of_cgroups() -> None:
    if not Path("/sys/fs/cgroup").is_mount():
        pytest.skip("no cgroup is mounted here")
    found = [it.found for it in run_checks(NodeFacts(TWO, open_tree("/")), ["cgroup"])]
    assert all(text.startswith(("cgroup v1", "cgroup v2", "cgroup hybrid")) for text in found)
    assert found
