"""The checks of what schedulers say of GPUs, and confine jobs with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.discovery import open_tree
from affinityd.doctor.checks.registry import run_checks
from affinityd.doctor.facts import NodeFacts, NoFiles
from tests.doctoring import NO_GPU, TWO, Expected, Files, check, facts_of, n_a, well
from tests.machines.by_hand import made

GRES_CONF = "etc/slurm/gres.conf"

#: A package a node, and device files.
PACKAGES = {0: "0-3", 1: "4-7"}
NODE = made(PACKAGES, gpus=[0, 1], packages=PACKAGES)
NODE = replace(NODE, gpus=tuple(replace(gpu, minor=gpu.index) for gpu in NODE.gpus))
#: A package of two nodes.
HALVES = made({0: "0-1", 1: "2-3", 2: "4-7"}, gpus=[0, 2], packages=PACKAGES)
HALVES = replace(HALVES, gpus=tuple(replace(gpu, minor=gpu.index) for gpu in HALVES.gpus))

RIGHT = "Name=gpu File=/dev/nvidia0 Cores=0-3\nName=gpu File=/dev/nvidia1 Cores=4-7"
CROSSED = "Name=gpu File=/dev/nvidia0 Cores=4-7\nName=gpu File=/dev/nvidia1 Cores=0-3"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (RIGHT, [well("gres.conf fits the node")]),
        (
            CROSSED,
            [Expected("warn", "gres.conf:1: gpu 0: ", "affinityd slurm gres-conf prints right")],
        ),
        (
            f"{RIGHT}\nfoo",
            [Expected("fail", "gres.conf:3: 'foo' is not written as Key=", "gres.conf(5)")],
        ),
        (
            "\n".join(f"Name=gpu File=/dev/nvidia{number}" for number in range(2, 9)),
            [Expected("warn", "; and 6 more", "affinityd slurm check names all")],
        ),
        ("a\0b", [Expected("fail", "gres.conf has a NUL in it", "slurmd")]),
    ],
    ids=["it fits", "crossed", "a line that is none", "much is wrong", "no text"],
)
def test_gres_conf(tmp_path: Path, lines: str, expected: list[Expected]) -> None:
    check("gres-conf", facts_of(tmp_path, NODE, {GRES_CONF: lines}), *expected)


SLURM_CONF = "etc/slurm/slurm.conf"
TYPED = RIGHT.replace("gpu ", "gpu Type=a100 ")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {GRES_CONF: TYPED, SLURM_CONF: "NodeName=gpu07 Gres=gpu:a100:2"},
            [well("gres.conf fits the node")],
        ),
        (
            {GRES_CONF: RIGHT, SLURM_CONF: "NodeName=gpu07 Gres=gpu:a100:2"},
            [
                Expected(
                    "warn",
                    "slurm.conf:1): slurmctld drains the node (INVALID_REG); add Type=a100",
                    "affinityd slurm gres-conf prints right lines for gpu07 (the machine's name)",
                )
            ],
        ),
        (
            {GRES_CONF: "NodeName=tux[1-9] Name=gpu File=/dev/nvidia[0-1]"},
            [
                Expected(
                    "warn",
                    "has lines of GPUs for 'tux[1-9]', and none for this node",
                    "this node was looked for as gpu07 (the machine's name); affinityd slurm check "
                    "--node-name NAME looks for another",
                )
            ],
        ),
        (
            {GRES_CONF: RIGHT, SLURM_CONF: "NodeName=tux[1-9] Gres=gpu:a100:2"},
            [
                Expected(
                    "warn",
                    "slurm.conf has no node gpu07",
                    "this node was looked for as gpu07 (the machine's name)",
                )
            ],
        ),
        (
            {GRES_CONF: RIGHT, SLURM_CONF: "NodeName=gpu07 Gres=gpu:a:b:2"},
            [Expected("fail", "slurm.conf:1: 'gpu:a:b:2' in Gres=", "slurm.conf(5)")],
        ),
    ],
    ids=["it fits", "no type", "lines of others", "a slurm.conf of others", "no Gres="],
)
def test_the_remedy_names_the_node_that_was_looked_for(
    tmp_path: Path, files: Files, expected: list[Expected]
) -> None:
    check("gres-conf", facts_of(tmp_path / "gpu07", NODE, files), *expected)


def test_files_of_other_nodes_alone_are_no_fault_where_a_node_has_no_gpu_or_detects_them(
    tmp_path: Path,
) -> None:
    others = "NodeName=tux[1-9] Name=gpu File=/dev/nvidia[0-1]"
    files = {GRES_CONF: others, SLURM_CONF: "NodeName=tux[1-9] Gres=gpu:2"}
    check("gres-conf", facts_of(tmp_path / "login1", NO_GPU, files), well("fits the node"))
    detected = {GRES_CONF: f"AutoDetect=nvml\n{others}"}
    check("gres-conf", facts_of(tmp_path / "gpu07", NODE, detected), well("fits the node"))


def test_cores_of_packages_are_as_right_as_those_of_nodes(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, HALVES, {GRES_CONF: RIGHT})
    check("gres-conf", facts, well("gres.conf fits the node"))
    halved = facts_of(tmp_path, HALVES, {GRES_CONF: RIGHT.replace("0-3", "0-1")})
    check("gres-conf", halved, well("gres.conf fits the node"))


def test_without_slurm_there_is_nothing_to_fit(tmp_path: Path) -> None:
    check("gres-conf", facts_of(tmp_path), n_a("no Slurm: there is no"))
    shipped = NodeFacts(TWO, NoFiles("shipped"))
    check("gres-conf", shipped, n_a("a shipped machine has no gres.conf"))


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
    found = [it.finding.found for it in run_checks(NodeFacts(TWO, open_tree("/")), ["cgroup"])]
    assert all(text.startswith(("cgroup v1", "cgroup v2", "cgroup hybrid")) for text in found)
    assert found
