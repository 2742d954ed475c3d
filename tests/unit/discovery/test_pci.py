"""Which PCI devices are GPUs and adapters, where they are on the bus, and on which NUMA node."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from affinityd.cpuset import parse_list
from affinityd.discovery import discover
from affinityd.discovery.nvml import NvmlGpu, NvmlReport
from affinityd.topology.model import Topology
from tests.support.machines.sysfs_tree import files_of, pci_devices, tree_of
from tests.support.tables import cases

PCI = "sys/bus/pci/devices"
GPU = "0000:07:00.0"


def read(
    tmp_path: Path, files: Mapping[str, object], links: Mapping[str, str] | None = None
) -> Topology:
    machine = {"sys/devices/system/cpu/online": "0", **files}
    return discover(tree_of(tmp_path, machine, links), None)


@pytest.mark.parametrize(("code", "vendor", "expected"), cases("pci_classes.tsv"))
def test_which_devices_are_gpus(tmp_path: Path, code: str, vendor: str, expected: str) -> None:
    gpus = read(tmp_path, pci_devices(code, vendor, GPU)).gpus
    assert [gpu.vendor for gpu in gpus] == expected.split()


@pytest.mark.parametrize(("driver", "is_gpu"), [("nvgrace_gpu_vfio_pci", False), ("nouveau", True)])
def test_a_device_bound_to_vfio_is_no_gpu(tmp_path: Path, driver: str, is_gpu: bool) -> None:
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


NEAR, FAR = "0000:02:00.0", "0000:00:01.0"
#: The GPU's folder, below two bridges.
REAL = f"sys/devices/pci0000:00/{FAR}/{NEAR}/{GPU}"

#: Nodes 0 and 1 have two online CPUs each; CPUs 4 and 5 are offline; node 4 has no CPUs.
MACHINE = {
    "sys/devices/system/cpu/online": "0-3",
    **files_of("sys/devices/system", "node/node0/cpulist=0-1,4; node/node1/cpulist=2-3,5"),
    "sys/devices/system/node/node4/cpulist": "",
    **files_of(REAL, "class=0x030200; vendor=0x10de"),
}


@pytest.mark.parametrize(("of_gpu", "of_bridges", "nvml", "expected"), cases("gpu_numa_nodes.tsv"))
def test_a_gpu_has_a_numa_node_and_its_source(
    tmp_path: Path, of_gpu: str, of_bridges: str, nvml: str, expected: str
) -> None:
    files = {**MACHINE, **files_of(REAL, of_gpu), **files_of(PCI, of_bridges)}
    tree = tree_of(tmp_path, files, {f"{PCI}/{GPU}": f"../../../{REAL.removeprefix('sys/')}"})
    said = NvmlReport(gpus=(NvmlGpu(0, pci_bus_id=GPU, node_cpus=parse_list(nvml)),))
    topology = discover(tree, said)
    (gpu,) = topology.gpus
    assert f"{gpu.numa_node} {gpu.numa_source}" == expected
    assert gpu.pci_path == ("pci0000:00", FAR, NEAR, GPU)
    notice = f"The machine does not say on which NUMA node these GPUs are: {GPU}"
    assert (notice in topology.notices) == (gpu.numa_node is None)


def test_a_single_node_without_gpu_places_may_hide_a_second_socket(tmp_path: Path) -> None:
    nodes = "sys/devices/system/node/node"
    files = {path: text for path, text in MACHINE.items() if not path.startswith(nodes)}
    files[f"{nodes}0/cpulist"] = "0-3"
    tree = tree_of(tmp_path, files, {f"{PCI}/{GPU}": f"../../../{REAL.removeprefix('sys/')}"})
    (notice,) = (text for text in discover(tree, None).notices if "does not say" in text)
    assert notice.endswith(
        "it shows one node, as a virtual machine that hides a second socket does"
    )
