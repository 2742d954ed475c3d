"""gres.conf as `affinityd slurm` prints and compares it, and as a real Slurm reads it."""

import os
import re
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.slurm.rig import HOST, USER, Setup, Slurm, slurm
from tests.support.machines.by_hand import made
from tests.support.machines.sysfs_tree import write_tree
from tests.support.tiny import FAR, NEAR, Ended, affinityd, tiny_tree
from tests.support.tiny import LOOK as WHERE

A100 = ("a100:0", "a100:1")
UNTYPED = "Name=gpu File=/dev/nvidia0 Cores=0\nName=gpu File=/dev/nvidia1 Cores=1\n"
TYPED = UNTYPED.replace("gpu ", "gpu Type=a100 ")

FITS = Ended(0, "", "")

#: Prints a job's GPUs.
LOOK = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES")


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    """Write a machine with two GPUs, called like this host, which is the node's NodeHostname=."""
    nodes = {0: NEAR, 1: FAR}
    with tempfile.TemporaryDirectory() as folder:
        machine = made(nodes, gpus=(0, 1), packages=nodes)
        gpus = (replace(gpu, minor=gpu.index) for gpu in machine.gpus)
        named = replace(machine, gpus=tuple(gpus))
        yield write_tree(named, Path(folder) / socket.gethostname())


def gres_conf(cluster: Slurm, tree: Path, *flags: str) -> Ended:
    """Return gres-conf's output for the cluster's node; it runs the cluster's own programs."""
    env = {"PATH": f"{cluster.programs()}:{os.environ['PATH']}"}
    conf = f"{cluster.folder}/slurm.conf"
    where = ("--root", f"{tree}", "--slurm-conf", conf)
    return affinityd("slurm", "gres-conf", *where, *flags, env=env)


def test_with_the_printed_lines_a_node_is_no_longer_drained(tree: Path, release: str) -> None:
    with slurm(Setup(gpus=A100, gres_conf=UNTYPED, state="inval", release=release)) as cluster:
        shown = cluster.run("scontrol", "show", "node")
        assert "INVALID_REG" in shown
        assert "Reason=gres/gpu count reported lower than configured (0 < 2)" in shown
        diff = gres_conf(cluster, tree, "--diff")
        assert diff.status == 1
        assert "\n+Name=gpu File=/dev/nvidia0 Cores=0\n" in diff.stdout
        assert "name it with --type" in gres_conf(cluster, tree).stderr
        printed = gres_conf(cluster, tree, "--type", "a100")
        assert (printed.status, printed.stderr) == (0, "")
    with slurm(Setup(gpus=A100, gres_conf=printed.stdout, release=release), USER) as cluster:
        assert cluster.srun("--gres=gpu:a100:1", *LOOK) == "0: 0\n"
        assert gres_conf(cluster, tree, "--diff") == FITS


PACKAGE = "Sockets=1 CoresPerSocket=2 ThreadsPerCore=1"
ONE_GPU = ("-n1", "--gres=gpu:1", "--gres-flags=enforce-binding")


def test_with_the_printed_settings_a_job_gets_the_near_core(tmp_path: Path, release: str) -> None:
    """The GPUs are on the second node; from the whole package Slurm would take the first core."""
    tree = tiny_tree(tmp_path / socket.gethostname(), 1, 1)
    lines = affinityd("slurm", "gres-conf", "--root", f"{tree}").stdout
    match = re.search(r"(SlurmdParameters=\S+) and, in the node's line, (Sockets=.*)", lines)
    assert match, lines

    def cluster(conf: Sequence[str], topology: str, state: str = "idle") -> Setup:
        setup = Setup(conf=conf, topology=topology, gres_conf=lines, state=state, release=release)
        return replace(setup, task_plugin="task/cgroup", hwloc="pack:1 numa:2 core:1 pu:1")

    is_drained = release != HOST
    with slurm(cluster((), PACKAGE, "inval" if is_drained else "idle"), USER) as lacking:
        if not is_drained:
            assert FAR not in lacking.srun(*ONE_GPU, *WHERE)
        assert (
            "Reason=gres/gpu GRES core" in lacking.run("scontrol", "show", "node")
        ) == is_drained
    with slurm(cluster((match[1],), match[2]), USER) as mended:
        assert mended.srun(*ONE_GPU, *WHERE).split()[-1] == FAR
        assert gres_conf(mended, tree, "--diff") == FITS


def test_a_diff_shows_slurmd_s_errors_about_a_file(tree: Path, release: str) -> None:
    with slurm(Setup(gpus=A100, gres_conf=TYPED, release=release)) as cluster:
        assert gres_conf(cluster, tree, "--diff") == FITS
        file = Path(f"{cluster.folder}/gres.conf")
        file.write_text(TYPED.replace("Cores=0", "Coress=0"))
        malformed = gres_conf(cluster, tree, "--diff")
        file.write_text(TYPED.replace("a100", "A100"))
        other = gres_conf(cluster, tree, "--diff")
    assert (malformed.status, malformed.stdout) == (2, "")
    assert "unrecognized key: Coress" in malformed.stderr
    assert 'gres.conf line 1: " Coress=0"' in malformed.stderr
    assert other.stdout.count("\n-Name=gpu Type=A100 ") == 2
