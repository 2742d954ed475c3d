from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.discovery import discover, open_tree
from affinityd.discovery.nvml.report import NvmlReport
from affinityd.discovery.snapshot import COMPRESSIONS, snapshot_nvml, write_snapshot
from affinityd.errors import TreeError
from affinityd.topology.model import Topology
from tests.support.machines.facts import ALL_NAMES, machine
from tests.support.machines.sysfs_tree import nvml_report, put, write_tree

GPU = "0000:07:00.0"


def replayed(path: Path) -> Topology:
    tree = open_tree(str(path))
    return discover(tree, snapshot_nvml(tree))


@pytest.mark.parametrize("name", ALL_NAMES)
def test_a_replay_is_the_same_machine(name: str, tmp_path: Path) -> None:
    tree = open_tree(str(write_tree(machine(name), tmp_path / "tree")))
    report = nvml_report(machine(name))
    write_snapshot(tree, report, tmp_path / "node7.tar")
    again = replayed(tmp_path / "node7.tar")
    assert again.name == "node7"
    assert replace(again, name="tree") == discover(tree, report)
    assert snapshot_nvml(open_tree(str(tmp_path / "node7.tar"))) == report


def test_a_replay_of_the_machine_at_hand_is_the_same_machine(tmp_path: Path) -> None:
    here = open_tree("/")
    write_snapshot(here, None, tmp_path / "here.tar.xz")
    assert replace(replayed(tmp_path / "here.tar.xz"), name=here.name) == discover(here, None)
    assert snapshot_nvml(open_tree(str(tmp_path / "here.tar.xz"))) is None


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_an_unpacked_snapshot_and_a_snapshot_of_a_snapshot_replay_too(
    tmp_path: Path, suffix: str
) -> None:
    tree = open_tree(str(write_tree(machine("mi250x"), tmp_path / "tree")))
    first, second = tmp_path / f"first{suffix}", tmp_path / f"second{suffix}"
    write_snapshot(tree, None, first)
    write_snapshot(open_tree(str(first)), None, second)
    assert second.read_bytes() == first.read_bytes()
    unpacked = tmp_path / "unpacked"
    with tarfile.open(second) as archive:
        # Python before 3.11.4 has no filters, from 3.12 on it wants one.
        filters = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(unpacked, **filters)  # type: ignore[arg-type]  # noqa: S202 - our own
    assert replace(replayed(unpacked), name="tree") == discover(tree, None)


def secretive_machine(root: Path) -> Path:
    """A DGX A100 with all the secrets that its files can hold."""
    write_tree(machine("dgx-a100"), root)
    pci = root / "sys/bus/pci/devices"
    put(pci / GPU / "vpd", "SECRET-serial")
    put(pci / GPU / "serial_number", "SECRET-serial")
    put(pci / GPU / "product_name", "SECRET-not-amd")
    for nic in (pci / device.pci_bus_id for device in machine("dgx-a100").nics):
        put(nic / "net/enx0c42a1aabbcc/address", "0c:42:a1:aa:bb:cc")
        put(nic / "infiniband/mlx5_0/node_guid", "SECRET-guid")
    information = root / f"proc/driver/nvidia/gpus/{GPU}/information"
    put(information, information.read_text() + "Video BIOS: SECRET-bios\nIRQ: 77777")
    meminfo = root / "sys/devices/system/node/node0/meminfo"
    put(meminfo, "Node 0 MemTotal: 1024 kB\nNode 0 MemUsed: 77777 kB")
    put(root / "proc/self/cgroup", "SECRET-job")
    put(root / "proc/4711/cmdline", "SECRET-command")
    put(root / "sys/class/dmi/id/product_serial", "SECRET-serial")
    return root


def test_a_snapshot_carries_no_serials_addresses_or_processes(tmp_path: Path) -> None:
    tree = open_tree(str(secretive_machine(tmp_path / "host-secret")))
    write_snapshot(tree, None, tmp_path / "node.tar")
    content = (tmp_path / "node.tar").read_bytes()
    for secret in (b"SECRET", b"secret", b"0c42a1", b"0c:42", b"77777", b"4711", b"cgroup"):
        assert secret not in content
    assert b"MemTotal" in content


def test_a_snapshots_members_have_no_owner_and_no_time(tmp_path: Path) -> None:
    tree = open_tree(str(write_tree(machine("laptop"), tmp_path / "tree")))
    write_snapshot(tree, NvmlReport(gpus=None, error="no driver"), tmp_path / "node.tar.gz")
    with tarfile.open(tmp_path / "node.tar.gz") as archive:
        owners = {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in archive}
        tops = {name.partition("/")[0] for name in archive.getnames()}
    assert owners == {(0, 0, "", "", 0)}
    assert tops == {"sys", "nvml.json"}
    assert (tmp_path / "node.tar.gz").read_bytes()[4:8] == bytes(4)  # gzip's own time


def test_a_snapshot_appears_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    tree = open_tree(str(write_tree(machine("laptop"), tmp_path / "tree")))
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "node.tar").symlink_to("precious")
    write_snapshot(tree, None, tmp_path / "node.tar")
    assert (tmp_path / "precious").read_text() == "kept"
    (tmp_path / "folder.tar").mkdir()
    with pytest.raises(OSError, match=r"folder\.tar"):
        write_snapshot(tree, None, tmp_path / "folder.tar")
    with pytest.raises(OSError, match="No such file"):
        write_snapshot(tree, None, tmp_path / "nowhere/node.tar")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["folder.tar", "node.tar", "precious", "tree"]


def test_an_output_whose_name_says_no_form_is_refused(tmp_path: Path) -> None:
    tree = open_tree(str(write_tree(machine("laptop"), tmp_path / "tree")))
    with pytest.raises(TreeError, match=r"node\.zip' should end in one of \.tar\.xz, \.tar\.gz"):
        write_snapshot(tree, None, tmp_path / "node.zip")


def test_nvml_answers_that_cannot_be_read_are_an_error_of_one_line(tmp_path: Path) -> None:
    root = write_tree(machine("laptop"), tmp_path / "tree")
    put(root / "nvml.json", "{]")
    with pytest.raises(TreeError, match=r"nvml\.json of machine 'tree' cannot be read: [^\n]*$"):
        snapshot_nvml(open_tree(str(root)))
