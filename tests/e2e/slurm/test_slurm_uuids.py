"""Slurm 26.05 finds NVIDIA's GPUs itself, and names them by UUID: AutoDetect=nvidia, env_uuid."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.e2e.slurm.node import CONF, GPU_NODES, HOME, INSTALLED, MINORS, Node, check, copied
from tests.e2e.slurm.rig import USER, Setup, slurm
from tests.support.daemons import running
from tests.support.machines.sysfs_tree import write_tree
from tests.support.tiny import tiny

RELEASE = "26.05"
UUIDS = tuple(f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(4))
DRIVERS = "/sys/bus/pci/drivers"

#: Slurm numbers what it finds by their files: its first two are the node's last.
FIRST_TWO = (3, 2)
TWO = ("--ntasks=2", "--gres=gpu:2")


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Run a node whose driver says of its GPUs what the daemon reads, too."""
    folder = tmp_path_factory.mktemp("uuids")
    machine = tiny(*GPU_NODES, minors=MINORS)
    gpus = tuple(replace(gpu, uuid=UUIDS[gpu.index]) for gpu in machine.gpus)
    tree = write_tree(replace(machine, gpus=gpus), folder / "machine")
    for gpu in gpus:
        driven = folder / "drivers/nvidia" / gpu.pci_bus_id
        driven.mkdir(parents=True)
        (driven / "local_cpulist").write_text(f"{HOME[gpu.index]}\n")
    run = folder / "run"
    setup = Setup(
        gpus=[str(minor) for minor in MINORS],
        gres_conf="AutoDetect=nvidia\nName=gpu Flags=env_uuid\n",
        task_plugin="task/affinity,task/cgroup",
        conf=(*CONF, "FirstJobId=8000"),
        binds={
            run: "/run/affinityd",
            copied(folder): INSTALLED,
            tree / "proc/driver": "/proc/driver",
            folder / "drivers": DRIVERS,
        },
        release=RELEASE,
    )
    with running(run, "--root", f"{tree}") as daemon, slurm(setup, USER) as cluster:
        yield Node(cluster, daemon, run)


@pytest.mark.parametrize("words", [TWO, ("--ntasks=2", "--gpus-per-task=1")], ids=" ".join)
@pytest.mark.parametrize("mode", ["node", "unique-contiguous"])
def test_each_task_is_near_the_gpu_that_is_named_by_uuid(
    it: Node, words: tuple[str, ...], mode: str
) -> None:
    tasks = it.tasks(*words, env={"AFFINITYD_MODE": mode})
    assert [task.cpus for task in tasks] == [HOME[gpu] for gpu in FIRST_TWO]
    named = ",".join(UUIDS[gpu] for gpu in FIRST_TWO)
    assert {task.variables["JOB_GPUS"] for task in tasks} == {named}


def test_a_running_job_with_detected_gpus_is_judged(it: Node) -> None:
    """It has one CPU, and three GPUs: not all of them are near it."""
    with it.cluster.job(1, "--gres=gpu:3", "--gres-flags=disable-binding"):
        checked = check(it)
    assert re.search(r"^job 8\d+ has gpu [0-3] \(", checked, re.MULTILINE), checked
    order = "Slurm's order is /dev/nvidia0, /dev/nvidia1, /dev/nvidia2, /dev/nvidia3; "
    assert order in checked  # and of nothing else: the cores that it detected are right
    assert ": 1 finding, 1 far GPU of jobs" in checked.splitlines()[-1]
