"""Slurm 26.05 detects NVIDIA's GPUs itself, and names them by UUID: AutoDetect=nvidia, env_uuid."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.topology.model import Nic, RdmaPort
from tests.e2e.slurm.node import GPU_NODES, HOME, MINORS, SCRIPTS, Node, gres_diff, node
from tests.e2e.slurm.rig import Setup
from tests.support.tiny import tiny

RELEASE = "26.05"
UUIDS = tuple(f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(4))
DRIVERS = "/sys/bus/pci/drivers"

#: Slurm numbers detected GPUs by their device files: Slurm's first two are the node's last two.
FIRST_TWO = (3, 2)
TWO = ("--ntasks=2", "--gres=gpu:2")


@pytest.fixture(scope="module")
def node_by_uuid() -> Iterator[Node]:
    """Run a node on which Slurm and the daemon read the same GPUs from NVIDIA's driver."""
    machine = tiny(*GPU_NODES, minors=MINORS)
    gpus = tuple(replace(gpu, uuid=UUIDS[gpu.index]) for gpu in machine.gpus)

    def prepare(folder: Path) -> Mapping[Path, str]:
        for gpu in gpus:
            driven = folder / "drivers/nvidia" / gpu.pci_bus_id
            driven.mkdir(parents=True)
            (driven / "local_cpulist").write_text(f"{HOME[gpu.index]}\n")
        return {folder / "machine/proc/driver": "/proc/driver", folder / "drivers": DRIVERS}

    setup = Setup(
        gres_conf="AutoDetect=nvidia\nName=gpu Flags=env_uuid\n",
        task_plugin="task/affinity,task/cgroup",
        conf=("FirstJobId=8000",),
        release=RELEASE,
    )
    minors = [str(minor) for minor in MINORS]
    with node(setup, replace(machine, gpus=gpus), minors, prepare) as running:
        yield running


@pytest.mark.parametrize("words", [TWO, ("--ntasks=2", "--gpus-per-task=1")], ids=" ".join)
@pytest.mark.parametrize("mode", ["node", "unique-contiguous"])
def test_tasks_are_near_the_gpus_that_slurm_names_by_uuid(
    node_by_uuid: Node, words: tuple[str, ...], mode: str
) -> None:
    tasks = node_by_uuid.tasks(*words, env={"AFFINITYD_MODE": mode})
    assert [task.cpus for task in tasks] == [HOME[gpu] for gpu in FIRST_TWO]
    named = ",".join(UUIDS[gpu] for gpu in FIRST_TWO)
    assert {task.variables["JOB_GPUS"] for task in tasks} == {named}


def test_gres_conf_and_detected_gpus_differ_only_in_order(node_by_uuid: Node) -> None:
    changed = gres_diff(node_by_uuid)
    removed, added = ([line[1:] for line in changed if line[0] == sign] for sign in "-+")
    assert sorted(removed) == sorted(added)


# With a site's AFFINITYD_NICS the libraries of each task are told the NICs near the task.

(SETTING,) = re.findall("printf '(AFFINITYD_NICS=.*)\\\\n'", (SCRIPTS / "README.md").read_text())

LOOK = ("/bin/sh", "-c", "echo ${UCX_NET_DEVICES-none} ${NVSHMEM_HCA_LIST-none}")
#: What a task on GPU 0 and one on GPU 1 are told, and what the batch script with both is told.
OWN, BOTH = ["mlx5_0:1 mlx5_0:1", "mlx5_2:1 mlx5_2:1"], "mlx5_0:1,mlx5_2:1 mlx5_0:1,mlx5_2:1"
NONE = ["none none"] * 2


@pytest.fixture(scope="module")
def node_with_nics(release: str) -> Iterator[Node]:
    """Run a node with as many NICs as GPUs, and the device files of the NICs."""
    ports = [
        RdmaPort(f"mlx5_{number}", 1, is_active=True, gbps=400, link_layer="InfiniBand")
        for number in range(len(GPU_NODES))
    ]
    nics = tuple(
        Nic(f"0000:{32 + number}:00.0", place, "infiniband", (port.device,), ports=(port,))
        for number, (place, port) in enumerate(zip(GPU_NODES, ports, strict=True))
    )

    def prepare(folder: Path) -> Mapping[Path, str]:
        files = folder / "machine/dev/infiniband"
        files.mkdir(parents=True)
        for number in range(len(nics)):
            (files / f"uverbs{number}").touch()
            (files / f"uverbs{number}").chmod(0o666)
        script = folder / "scripts/task_prolog.sh"
        places = f"sys={folder}/machine/sys dev={folder}/machine/dev"
        script.write_text(script.read_text().replace("sys=/sys dev=/dev", places))
        (folder / "affinityd.conf").write_text(SETTING)
        return {folder / "affinityd.conf": "/etc/affinityd.conf"}

    setup = Setup(task_plugin="task/affinity", release=release)
    with node(setup, replace(tiny(*GPU_NODES), nics=nics), "0123", prepare) as running:
        yield running


def printed_by_tasks(printed: str) -> list[str]:
    labeled = (line.partition(": ") for line in sorted(printed.splitlines()))
    return [text for number, _, text in labeled if number.isdigit()]


#: A step of a batch script → the NICs that the tasks of the step are told.
STEPS = {
    "srun": OWN,
    "UCX_NET_DEVICES=eth0 srun": ["eth0 mlx5_0:1", "eth0 mlx5_2:1"],
    "AFFINITYD_NICS=ucx srun": ["mlx5_0:1 none", "mlx5_2:1 none"],
    "AFFINITYD=off srun": NONE,
    "srun --gres=none": NONE,
}


def test_nics_of_a_batch_script_are_not_inherited_by_its_steps(node_with_nics: Node) -> None:
    look = shlex.join(LOOK)
    steps = [look, *(f"{step} --label --ntasks=2 {look}" for step in STEPS)]
    text = node_with_nics.cluster.sbatch("\necho next\n".join(steps), *TWO)
    script, *printed = text.split("next\n")
    assert script.strip() == BOTH
    assert dict(zip(STEPS, map(printed_by_tasks, printed), strict=True)) == STEPS
