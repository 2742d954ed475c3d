"""A machine that is written as a kernel would show it is read back the same."""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from affinityd.discovery import discover, open_tree
from affinityd.discovery.snapshot import RecordingTree, snapshot_nvml, write_snapshot
from affinityd.topology.model import Core, Gpu, MigInstance, Nic, NumaNode, Topology
from tests.support.machines.facts import ALL_NAMES, machine
from tests.support.machines.strategies import machines
from tests.support.machines.sysfs_tree import nvml_report, write_tree

#: Vendors whose drivers tell a model.
TELLING = ("nvidia", "amd")

GPU_PATH = ("pci0000:00", "0000:00:01.0", "0000:07:00.0")
MI250X = Gpu(0, "amd", "0000:c6:00.0", 0, "numa_node", "GPU-00000000000000ab", None, 129, "MI250X")
#: Everything that a file can tell about a device.
DETAILED = Topology(
    name="detailed",
    cores=(Core((0, 4), 0, 0, 0, 0), Core((1, 5), 0, 0, 0, 0), Core((2,), 1, 1, 1, 2)),
    nodes=(NumaNode(0, 2**30, {0: 10, 1: 21}), NumaNode(1, 0, {0: 21, 1: 10})),
    gpus=(
        Gpu(
            *(0, "nvidia", "0000:07:00.0", 1, "numa_node", "GPU-1a", 1, None, "NVIDIA A100"),
            *("10de:20b0", GPU_PATH, (MigInstance("MIG-1"),)),
        ),
        replace(MI250X, pci_id="1002:7408", pci_path=("pci0000:c0", "0000:c6:00.0")),
        Gpu(
            *(1, "amd", "0000:c1:00.0", 0, "numa_node", None, None, 128, None),
            *("1002:7408", ("pci0000:c0", "0000:c1:00.0")),
        ),
    ),
    nics=(
        Nic(
            *("0000:08:00.0", 1, "infiniband", ("mlx5_0", "ib0")),
            ("pci0000:00", "0000:00:01.0", "0000:08:00.0"),
        ),
    ),
    possible=frozenset(range(8)),
)


def test_every_file_of_a_device_is_understood(tmp_path: Path) -> None:
    tree = open_tree(str(write_tree(DETAILED, tmp_path / "detailed")))
    assert discover(tree, nvml_report(DETAILED)) == DETAILED


@pytest.mark.parametrize("name", ALL_NAMES)
def test_a_named_machine_is_read_back_and_so_is_its_snapshot(name: str, tmp_path: Path) -> None:
    written, report = machine(name), nvml_report(machine(name))
    tree = open_tree(str(write_tree(written, tmp_path / "tree")))
    found = discover(tree, None)
    assert (found.cores, found.nodes) == (written.cores, written.nodes)
    assert (found.online, found.possible) == (written.online, written.possible)
    assert [plain(gpu) for gpu in found.gpus] == [plain(gpu) for gpu in written.gpus]
    assert nearnesses(found) == nearnesses(written)
    write_snapshot(tree, report, tmp_path / "node7.tar")
    replay = open_tree(str(tmp_path / "node7.tar"))
    assert snapshot_nvml(replay) == report
    assert discover(replay, report) == replace(discover(tree, report), name="node7")


def plain(gpu: Gpu) -> Gpu:
    """A GPU without its path, whose bridges have names of their own in a tree, and its source."""
    model = gpu.model if gpu.vendor in TELLING else None
    return replace(gpu, pci_path=(), numa_source=None, model=model)


def nearnesses(topology: Topology) -> list[tuple[str, str, str]]:
    return [
        (gpu.pci_bus_id, nic.pci_bus_id, topology.nearness(gpu, nic))
        for gpu in topology.gpus
        for nic in topology.nics
    ]


def firm(topology: Topology) -> Topology:
    """Return a machine whose firmware tells the distance of every two nodes, as in a tree."""
    numbers = [node.number for node in topology.nodes if node.number is not None]
    nodes = (
        replace(node, distances={end: node.distances.get(end, 255) for end in numbers})
        for node in topology.nodes
        if node.number is not None
    )
    stray = (node for node in topology.nodes if node.number is None)
    return replace(topology, nodes=(*nodes, *stray))


@settings(max_examples=60, deadline=None)
@given(written=machines().map(firm))
def test_any_machine_is_read_back(
    written: Topology, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = write_tree(written, tmp_path_factory.mktemp("machine"))
    found = discover(open_tree(str(root)), nvml_report(written))
    assert (found.cores, found.nodes) == (written.cores, written.nodes)
    assert [plain(gpu) for gpu in found.gpus] == [plain(gpu) for gpu in written.gpus]


def test_no_more_is_read_than_a_plan_needs(tmp_path: Path) -> None:
    mi250x = machine("mi250x")
    recorder = RecordingTree(open_tree(str(write_tree(mi250x, tmp_path))))
    discover(recorder, None)
    reads = Counter(path.rpartition("/")[2] for path in recorder.found[tarfile.REGTYPE])
    cores, groups = len(mi250x.cores), len({core.llc for core in mi250x.cores})
    assert reads["thread_siblings_list"] == reads["physical_package_id"] == cores
    assert reads["shared_cpu_list"] == reads["type"] == groups
    assert reads["numa_node"] == reads["vendor"] == len(mi250x.gpus) + len(mi250x.nics)


def test_the_machine_at_hand_has_the_cpus_that_the_kernel_counts() -> None:
    assert len(discover(open_tree("/"), None).online) == os.cpu_count()


def test_names_with_control_characters_reach_nobody(tmp_path: Path) -> None:
    tree = write_tree(DETAILED, tmp_path / "na\udcffme\x1b")
    device = tree / f"sys/bus/pci/devices/{DETAILED.gpus[1].pci_bus_id}"
    (device / "product_name").write_text("MI\x1b]0;owned\x07\n250")
    read = discover(open_tree(str(tree)), None)
    assert read.name == "na?me?"
    assert read.gpus[1].model == "MI?]0;owned??250"
