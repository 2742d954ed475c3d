"""Which PCI devices are GPUs and adapters, and where they are on the bus."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from affinityd.discovery import discover
from affinityd.topology.model import Topology
from tests.support.machines.sysfs_tree import files_of, pci_devices, tree_of
from tests.support.tables import rows

PCI = "sys/bus/pci/devices"
GPU = "0000:07:00.0"


def read(
    tmp_path: Path, files: Mapping[str, object], links: Mapping[str, str] | None = None
) -> Topology:
    machine = {"sys/devices/system/cpu/online": "0", **files}
    return discover(tree_of(tmp_path, machine, links), None)


@pytest.mark.parametrize(
    ("code", "vendor", "expected"),
    rows("""
    NVIDIA's display | 0x030000 | 0x10de | nvidia
    AMD's APU | 0x030000 | 0x1002 | amd
    AMD's accelerator | 0x120000 | 0x1002 | amd
    Huawei's Ascend | 0x120000 | 0x19e5 | huawei
    anybody's accelerator, by its digits | 0x120000 | 0x1ED5 | 1ed5
    ASPEED's display is a BMC's | 0x030000 | 0x1a03 |
    NVIDIA's NVSwitch is a bridge | 0x068000 | 0x10de |
    NVIDIA's audio function | 0x040300 | 0x10de |
    a co-processor | 0x0b4000 | 0x1bcf |
    a device whose class cannot be read | ? | 0x10de |
    """),
)
def test_which_devices_are_gpus(tmp_path: Path, code: str, vendor: str, expected: str) -> None:
    gpus = read(tmp_path, pci_devices(code, vendor, GPU)).gpus
    assert [gpu.vendor for gpu in gpus] == expected.split()


@pytest.mark.parametrize("text", ["0x10d", "0x10de0", "0x10dg", "１２３４"])
def test_what_is_no_vendors_number_is_nobody_s(tmp_path: Path, text: str) -> None:
    (gpu,) = read(tmp_path, pci_devices("0x120000", text, GPU)).gpus
    assert (gpu.vendor, gpu.pci_id) == ("unknown", None)


@pytest.mark.parametrize(("driver", "is_gpu"), [("nvgrace_gpu_vfio_pci", False), ("nouveau", True)])
def test_what_a_vm_may_have_is_no_gpu(tmp_path: Path, driver: str, is_gpu: bool) -> None:
    files = pci_devices("0x030200", "0x10de", GPU)
    links = {f"{PCI}/{GPU}/driver": f"../../../../bus/pci/drivers/{driver}"}
    assert bool(read(tmp_path, files, links).gpus) == is_gpu


def test_adapters_have_a_kind_and_names_without_addresses(tmp_path: Path) -> None:
    files = {
        **pci_devices("0x020000", "0x15b3", "0000:19:00.0"),
        **pci_devices("0x028000", "0x8086", "0000:1a:00.0"),
        f"{PCI}/0000:1a:00.0/virtio3/net/eth0/x": "",
        f"{PCI}/0000:19:00.0/net/enx001122334455/address": "00:11:22:33:44:55",
        f"{PCI}/0000:19:00.0/net/enp25s0f0np0/address": "00:11:22:33:44:55",
    }
    nics = read(tmp_path, files).nics
    assert [(nic.pci_bus_id, nic.kind, nic.names) for nic in nics] == [
        ("0000:19:00.0", "ethernet", ("enp25s0f0np0",)),
        ("0000:1a:00.0", "network", ("eth0",)),
    ]


@pytest.mark.parametrize(
    ("folder", "path"),
    [
        ("pci0000:17/0000:17:00.0", ("pci0000:17", "0000:17:00.0", GPU)),
        ("platform/10000000.pcie/pci0000:00", ("pci0000:00", GPU)),
        ("odd", ()),
    ],
)
def test_paths_begin_at_the_host_bridge(tmp_path: Path, folder: str, path: tuple[str, ...]) -> None:
    files = files_of(f"sys/devices/{folder}/{GPU}", "class=0x030200; vendor=0x10de")
    links = {f"{PCI}/{GPU}": f"../../../devices/{folder}/{GPU}"}
    (gpu,) = read(tmp_path, files, links).gpus
    assert gpu.pci_path == path
