"""What `affinityd slurm` says of gres.conf, beside what a real Slurm makes of the same lines."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from affinityd.slurm.agreement import DRAINED
from affinityd.slurm.config.expected import Unknown
from affinityd.slurm.config.scontrol import show_node
from tests.e2e.slurm.rig import USER, Setup, Slurm, slurm
from tests.tiny import Ended, affinityd, tiny_tree

pytestmark = pytest.mark.slurm

A100 = ("a100:0", "a100:1")
UNTYPED = "Name=gpu File=/dev/nvidia0 Cores=0\nName=gpu File=/dev/nvidia1 Cores=1\n"
TYPED = UNTYPED.replace("gpu ", "gpu Type=a100 ")

FITS = "gres.conf fits this node\n"

#: What a job prints of its GPUs.
LOOK = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES")


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    """Write a machine with two GPUs, which has this host's name: that is its NodeHostname=."""
    with tempfile.TemporaryDirectory() as folder:
        yield tiny_tree(Path(folder) / socket.gethostname(), 0, 1)


def told(command: str, cluster: Slurm, tree: Path) -> Ended:
    """Return what a command says of the cluster's node."""
    conf = f"{cluster.folder}/slurm.conf"
    return affinityd("slurm", command, "--root", f"{tree}", "--slurm-conf", conf)


def test_a_node_whose_gres_has_a_type_is_drained_until_it_has_the_lines_that_are_printed(
    tree: Path, release: str
) -> None:
    with slurm(Setup(gpus=A100, gres_conf=UNTYPED, state="inval", release=release)) as cluster:
        shown = cluster.run("scontrol", "show", "node")
        assert "INVALID_REG" in shown
        assert "Reason=gres/gpu count reported lower than configured (0 < 2)" in shown
        check = told("check", cluster, tree)
        assert check.status == 1
        assert check.stdout.count(f"{DRAINED}; add Type=a100") == 2
        printed = told("gres-conf", cluster, tree)
        assert (printed.status, printed.stderr) == (0, "")
    with slurm(Setup(gpus=A100, gres_conf=printed.stdout, release=release), USER) as cluster:
        assert cluster.srun("--gres=gpu:a100:1", *LOOK) == "0: 0\n"
        assert told("check", cluster, tree).stdout == FITS


@pytest.mark.parametrize(
    ("gpus", "lines", "finding"),
    [
        (
            A100,
            TYPED.replace("a100", "A100"),
            f"Type=A100 is not in Gres=gpu:a100:2 (@): {DRAINED}",
        ),
        (("0", "1"), UNTYPED.splitlines()[0], f"Gres=gpu:2 has 2 GPUs, and gres.conf 1: {DRAINED}"),
        (("0", "1"), UNTYPED.replace("gpu", "GPU"), f"Name='GPU' is not gpu: {DRAINED}"),
        (("0", "1"), TYPED, "Type=a100 does not count, as Gres=gpu:2 (@) has none"),
    ],
    ids=["another case", "too few", "another case of gpu", "a type too much"],
)
def test_a_node_is_drained_by_the_lines_that_the_check_says_so_of(
    tree: Path, gpus: tuple[str, ...], lines: str, finding: str, release: str
) -> None:
    state = "inval" if DRAINED in finding else "idle"
    with slurm(Setup(gpus=gpus, gres_conf=lines, state=state, release=release)) as cluster:
        check = told("check", cluster, tree)
    said = re.sub(rf"{cluster.folder}/slurm.conf:\d+", "@", check.stdout)
    assert finding in said
    assert (DRAINED in said) == (state == "inval")


def test_a_job_has_another_gpu_than_cudas_where_the_types_are_not_in_the_order_of_the_bus(
    tree: Path, release: str
) -> None:
    lines = TYPED.replace("a100", "big", 1).replace("a100", "small")
    with slurm(Setup(gpus=("small:1", "big:0"), gres_conf=lines, release=release)) as cluster:
        assert cluster.srun("--gres=gpu:big:1", *LOOK) == "0: 1\n"
        assert "write Gres=gpu:big:1,gpu:small:1" in told("check", cluster, tree).stdout
    with slurm(Setup(gpus=("big:0", "small:1"), gres_conf=lines, release=release)) as cluster:
        assert cluster.srun("--gres=gpu:big:1", *LOOK) == "0: 0\n"
        assert told("check", cluster, tree).stdout == FITS


def test_without_slurm_conf_slurmctld_tells_what_it_expects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with slurm(Setup(gpus=A100, gres_conf=TYPED)) as cluster:
        monkeypatch.setenv("SLURM_CONF", os.fspath(cluster.folder / "slurm.conf"))
        node = cluster.run("sinfo", "--noheader", "--format=%N").strip()
        told, strange = show_node(node), show_node("tux")
    assert not isinstance(told, Unknown)
    assert (told.counts, told.cores, told.place) == ({"a100": 2}, 2, f"scontrol show node {node}")
    assert strange == Unknown("scontrol show node tux: Node tux not found")
