"""Network adapters, their RDMA ports, bonds and virtual functions, from the kernel's files."""

from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.discovery import discover, open_tree
from affinityd.discovery.pci import port_states
from affinityd.topology.model import Nic, RdmaPort, Topology
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import write_tree

UP, DOWN = True, False
NICS = (
    Nic(
        *("0000:08:00.0", 1, "infiniband", ("mlx5_0", "ib0")),
        pci_path=("pci0000:00", "0000:00:01.0", "0000:08:00.0"),
        ports=(
            RdmaPort("mlx5_0", 1, UP, 400, "InfiniBand", "ib0"),
            RdmaPort("mlx5_0", 2, DOWN, 2, "InfiniBand", "ib0"),
        ),
    ),
    Nic(
        *("0000:08:00.1", 1, "ethernet", ("mlx5_1", "eth1"), ("pci0000:00", "0000:08:00.1")),
        ports=(RdmaPort("mlx5_1", 1, UP, 200, "Ethernet", "eth1"),),
        physical="0000:08:00.0",
        bond="bond0",
    ),
    Nic(
        *("0000:09:00.0", 0, "ethernet", ("cxi0", "hsi0"), ("pci0000:09", "0000:09:00.0")),
        ports=(RdmaPort("cxi0", 1, UP, 200, "Slingshot", "hsi0"),),
    ),
    Nic(
        *("0000:0a:1b.0", 0, "ethernet", ("rdma_p10s27",), ("pci0000:0a", "0000:0a:1b.0")),
        ports=(RdmaPort("rdma_p10s27", 1, UP, 100),),
    ),
    Nic("0000:0b:00.0", 0, "ethernet", ("eth0",), ("pci0000:0b", "0000:0b:00.0")),
)
MACHINE = replace(machine("flat"), nics=NICS)
READ = tuple(replace(nic, numa_source="numa_node") for nic in NICS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_tree(MACHINE, tmp_path / "machine")


def read(root: Path) -> Topology:
    return discover(open_tree(str(root)), None)


def test_adapters_are_read_back_as_written(root: Path) -> None:
    assert read(root).nics == READ


@pytest.mark.parametrize(
    ("file", "text", "port"),
    [
        ("state", "", RdmaPort("mlx5_1", 1, DOWN, 200, "Ethernet", "eth1")),
        ("state", "5: ACTIVE_DEFER", RdmaPort("mlx5_1", 1, DOWN, 200, "Ethernet", "eth1")),
        ("rate", "", RdmaPort("mlx5_1", 1, UP, None, "Ethernet", "eth1")),
        ("rate", "2.5 Gb/sec (1X SDR)", RdmaPort("mlx5_1", 1, UP, 2, "Ethernet", "eth1")),
        ("rate", "9" * 5000, RdmaPort("mlx5_1", 1, UP, None, "Ethernet", "eth1")),
        ("link_layer", "", RdmaPort("mlx5_1", 1, UP, 200, None, "eth1")),
    ],
)
def test_a_port_is_read_from_its_files(root: Path, file: str, text: str, port: RdmaPort) -> None:
    ports = root / "sys/bus/pci/devices/0000:08:00.1/infiniband/mlx5_1/ports/1"
    (ports / file).write_text(f"{text}\n")
    assert read(root).nics[1].ports == (port,)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("infiniband/mlx5_0/ports/1/state", "1: DOWN"),
        ("cxi/cxi0/device/port/link", "down"),
        ("infiniband/mlx5_1", None),
    ],
)
def test_a_port_that_goes_down_and_a_removed_device_are_noticed(
    root: Path, path: str, text: str | None
) -> None:
    tree, file = open_tree(str(root)), root / "sys/class" / path
    before = port_states(tree)
    (root / "sys/class/infiniband/mlx5_0/ports/2/state").write_text("2: INIT\n")
    assert port_states(tree) == before
    if text is None:
        file.unlink()
    else:
        file.write_text(f"{text}\n")
    assert port_states(tree) != before
