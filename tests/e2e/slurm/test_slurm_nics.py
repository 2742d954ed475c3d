"""A site's AFFINITYD_NICS: the libraries of each task are told of its own NICs."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.topology.model import Nic, RdmaPort
from tests.e2e.slurm.node import CONF, GPU_NODES, INSTALLED, SCRIPTS, Node, copied
from tests.e2e.slurm.rig import USER, Setup, slurm
from tests.support.daemons import running
from tests.support.machines.sysfs_tree import write_tree
from tests.support.tiny import tiny

(SETTING,) = re.findall("printf '(AFFINITYD_NICS=.*)\\\\n'", (SCRIPTS / "README.md").read_text())
TWO = ("--ntasks=2", "--gres=gpu:2")
LOOK = ("/bin/sh", "-c", "echo ${UCX_NET_DEVICES-none} ${NVSHMEM_HCA_LIST-none}")
#: Of the GPUs 0 and 1, which are on two nodes: NCCL begins with these, too.
OWN, BOTH = ["mlx5_0:1 mlx5_0:1", "mlx5_2:1 mlx5_2:1"], "mlx5_0:1,mlx5_2:1 mlx5_0:1,mlx5_2:1"
NONE = ["none none"] * 2


def write_machine(root: Path) -> Path:
    """Write a node with as many NICs as GPUs, and the device files of the NICs."""
    files = root / "dev/infiniband"
    files.mkdir(parents=True)
    nics = []
    for number, node in enumerate(GPU_NODES):
        port = RdmaPort(f"mlx5_{number}", 1, is_active=True, gbps=400, link_layer="InfiniBand")
        nic = Nic(f"0000:{32 + number}:00.0", node, "infiniband", (port.device,), ports=(port,))
        nics.append(nic)
        (files / f"uverbs{number}").touch()
        (files / f"uverbs{number}").chmod(0o666)
    return write_tree(replace(tiny(*GPU_NODES), nics=tuple(nics)), root)


@pytest.fixture(scope="module")
def it(release: str) -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="nics-") as name:  # users look into it
        folder = Path(name)
        folder.chmod(0o755)
        tree, scripts, run = write_machine(folder / "machine"), copied(folder), folder / "run"
        script = scripts / "task_prolog.sh"
        places = (f"{name}={tree}/{name}" for name in ("sys", "dev"))
        script.write_text(script.read_text().replace("sys=/sys dev=/dev", " ".join(places)))
        settings = folder / "affinityd.conf"
        settings.write_text(SETTING)
        binds = {run: "/run/affinityd", scripts: INSTALLED, settings: "/etc/affinityd.conf"}
        setup = Setup(
            gpus="0123", task_plugin="task/affinity", conf=CONF, binds=binds, release=release
        )
        with running(run, "--root", f"{tree}") as daemon, slurm(setup, USER) as cluster:
            yield Node(cluster, daemon, run)


def told(printed: str) -> list[str]:
    """Return what the tasks of a step printed, by their numbers."""
    labeled = (line.partition(": ") for line in sorted(printed.splitlines()))
    return [text for number, _, text in labeled if number.isdigit()]


def test_each_task_is_told_of_its_own_nic_unless_its_user_has_chosen(it: Node) -> None:
    assert told(it.cluster.srun(*TWO, *LOOK)) == OWN
    chosen = it.cluster.srun(*TWO, *LOOK, env={"UCX_NET_DEVICES": "eth0"})
    assert told(chosen) == ["eth0 mlx5_0:1", "eth0 mlx5_2:1"]


#: A step of a batch script, and what its tasks are told.
STEPS = {
    "srun": OWN,
    "UCX_NET_DEVICES=eth0 srun": ["eth0 mlx5_0:1", "eth0 mlx5_2:1"],
    "AFFINITYD_NICS=ucx srun": ["mlx5_0:1 none", "mlx5_2:1 none"],
    "AFFINITYD=off srun": NONE,
    "srun --gres=none": NONE,
}


def test_the_nics_of_a_batch_script_are_not_those_of_its_steps(it: Node) -> None:
    look = shlex.join(LOOK)
    steps = [look, *(f"{step} --label --ntasks=2 {look}" for step in STEPS)]
    script, *printed = it.cluster.sbatch("\necho next\n".join(steps), *TWO).split("next\n")
    assert script.strip() == BOTH
    assert dict(zip(STEPS, map(told, printed), strict=True)) == STEPS
