"""A machine written as a kernel's files is read back the same, also from a snapshot."""

import os
import shutil
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from affinityd.config.settings import Settings
from affinityd.discovery import discover, open_tree, snapshot_nvml
from affinityd.discovery.machine import Machine
from affinityd.discovery.snapshot import SUFFIXES, write_snapshot
from affinityd.discovery.tree import Tree
from affinityd.errors import TreeError
from affinityd.topology.model import Nic, Topology
from tests.support.machines.by_hand import made
from tests.support.machines.facts import ALL_NAMES, machine
from tests.support.machines.sysfs_tree import files_of, nvml_report, put, write_tree


@pytest.mark.parametrize("name", ALL_NAMES)
def test_a_named_machine_and_its_snapshot_are_read_back(name: str, tmp_path: Path) -> None:
    written, report = machine(name), nvml_report(machine(name))
    tree = open_tree(str(write_tree(written, tmp_path / "tree")))
    topology = discover(tree, None)
    assert plain(topology) == plain(written)
    assert (topology.online, topology.possible) == (written.online, written.possible)
    assert nearnesses(topology) == nearnesses(written)
    assert [nic.ports for nic in topology.nics] == [nic.ports for nic in written.nics]
    write_snapshot(tree, report, tmp_path / "node7.tar")
    replay = unpacked(tmp_path / "node7.tar")
    assert snapshot_nvml(replay) == report
    assert discover(replay, report) == replace(discover(tree, report), name="node7")


def unpacked(archive: Path) -> Tree:
    """Unpack a snapshot with tar, as its reader does, into a folder that has its name."""
    folder = archive.with_name(archive.name.partition(".")[0])
    folder.mkdir()
    subprocess.run(["tar", "-C", folder, "-xf", archive], check=True)
    return open_tree(str(folder))


def plain(topology: Topology) -> tuple[object, ...]:
    """Return a machine without its GPUs' paths, since bridges have other names in a tree."""
    gpus = [replace(gpu, pci_path=(), numa_source=None) for gpu in topology.gpus]
    others = (replace(gpu, model=None) for gpu in gpus if gpu.vendor not in {"nvidia", "amd"})
    told = (gpu for gpu in gpus if gpu.vendor in {"nvidia", "amd"})
    return topology.cores, topology.nodes, *told, *others


def nearnesses(topology: Topology) -> list[tuple[str, str, str]]:
    pairs = product(topology.gpus, topology.nics)
    return [(gpu.pci_bus_id, nic.pci_bus_id, topology.nearness(gpu, nic)) for gpu, nic in pairs]


def test_a_gpu_dropped_by_the_driver_counts_as_a_change_of_drivers(tmp_path: Path) -> None:
    settings = Settings(root=os.fspath(write_tree(machine("dgx-h100"), tmp_path)))
    gpus = tmp_path / "proc/driver/nvidia/gpus"
    for name in ("0000:1b:00.0", "0000:43:00.0"):
        put(gpus / name / "information", "")
    watched = Machine(settings)
    before = watched.drivers()
    assert watched.drivers() == before
    shutil.rmtree(gpus / "0000:43:00.0")
    assert watched.drivers() != before


def test_a_snapshot_of_this_machine_replays_it(tmp_path: Path) -> None:
    here = open_tree("/")
    topology = discover(here, None)
    assert len(topology.online) == os.cpu_count()
    write_snapshot(here, None, tmp_path / "here.tar.xz")
    replay = unpacked(tmp_path / "here.tar.xz")
    assert replace(discover(replay, None), name=here.name) == topology
    assert snapshot_nvml(replay) is None


def test_control_characters_in_names_become_question_marks(tmp_path: Path) -> None:
    mi250x = machine("mi250x")
    tree = write_tree(mi250x, tmp_path / "na\udcffme\x1b")
    device = tree / f"sys/bus/pci/devices/{mi250x.gpus[1].pci_bus_id}"
    (device / "product_name").write_text("MI\x1b]0;owned\x07\n250")
    read = discover(open_tree(str(tree)), None)
    assert read.name == "na?me?"
    assert read.gpus[1].model == "MI?]0;owned??250"


NIC = Nic("0000:08:00.0", 0, "infiniband", ("mlx5_0", "ib0"))
NODE = replace(made({0: "0-1", 1: "2-3"}, gpus=[0, 1]), nics=(NIC,))
GPU = NODE.gpus[0].pci_bus_id


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return open_tree(str(write_tree(NODE, tmp_path / "tree")))


def test_a_file_that_fails_differs_from_a_missing_file(tmp_path: Path) -> None:
    root = write_tree(NODE, tmp_path / "tree")

    def fails(path: str) -> None:
        (root / path).unlink(missing_ok=True)
        (root / path).symlink_to("/proc/self/mem")  # nothing is at address 0: EIO

    port = f"sys/bus/pci/devices/{NIC.pci_bus_id}/infiniband/mlx5_0/ports/1/state"
    put(root / port, "4: ACTIVE")
    fails(port)
    notice = f"/{port} could not be read: Input/output error"
    live = Tree(f"{root}/", "tree", live=True)
    assert discover(live, None).notices[-1] == notice
    fails("sys/devices/system/node/node1/cpulist")
    with pytest.raises(TreeError, match=r"^/sys/devices/system/node/node1/cpulist: Input/output"):
        discover(live, None)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_snapshot_of_each_format_can_be_replayed_and_taken_again(
    tree: Tree, tmp_path: Path, suffix: str
) -> None:
    write_snapshot(tree, None, tmp_path / f"first{suffix}")
    first = unpacked(tmp_path / f"first{suffix}")
    assert replace(discover(first, None), name="tree") == discover(tree, None)
    write_snapshot(first, None, tmp_path / f"second{suffix}")
    assert discover(unpacked(tmp_path / f"second{suffix}"), None).gpus == discover(tree, None).gpus


SECRETS = {
    **files_of(
        f"sys/bus/pci/devices/{GPU}", "vpd=SECRET; serial_number=SECRET; product_name=SECRET"
    ),
    f"sys/bus/pci/devices/{NIC.pci_bus_id}/net/enx0c42a1aabbcc/address": "0c:42:a1:aa:bb:cc",
    f"sys/bus/pci/devices/{NIC.pci_bus_id}/infiniband/mlx5_0/node_guid": "SECRET",
    f"sys/bus/pci/devices/{NIC.pci_bus_id}/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0": (
        "enx0c42a1"
    ),
    f"proc/driver/nvidia/gpus/{GPU}/information": "Model: A100\nVideo BIOS: SECRET\nIRQ: 77777",
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 1024 kB\nNode 0 MemUsed: 77777 kB",
    "proc/self/cgroup": "SECRET-job",
    "proc/4711/cmdline": "SECRET-command",
    "sys/class/dmi/id/product_serial": "SECRET-serial",
}


def test_a_snapshot_carries_no_serials_addresses_or_processes(tmp_path: Path) -> None:
    root = write_tree(NODE, tmp_path / "host-secret")
    for path, text in SECRETS.items():
        put(root / path, text)
    write_snapshot(open_tree(str(root)), None, tmp_path / "node.tar")
    content = (tmp_path / "node.tar").read_bytes()
    for secret in (b"SECRET", b"secret", b"0c42a1", b"0c:42", b"77777", b"4711", b"cgroup"):
        assert secret not in content
    assert b"MemTotal" in content
    assert b"A100" in content


def test_a_snapshot_is_written_atomically(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "node.tar").symlink_to("precious")
    write_snapshot(tree, None, tmp_path / "node.tar")
    (tmp_path / "folder.tar").mkdir()
    for name, error in (("folder.tar", r"folder\.tar"), ("nowhere/node.tar", "No such file")):
        with pytest.raises(OSError, match=error):
            write_snapshot(tree, None, tmp_path / name)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["folder.tar", "node.tar", "precious", "tree"]
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_malformed_nvml_report_in_a_snapshot_is_an_error_of_one_line(
    tree: Tree, tmp_path: Path
) -> None:
    put(tmp_path / "tree/nvml.json", "{]")
    with pytest.raises(TreeError, match=r"nvml\.json of machine 'tree' cannot be read: [^\n]*$"):
        snapshot_nvml(tree)
