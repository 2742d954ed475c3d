"""Which devices are GPUs and adapters, and what the bus, their drivers and NVML tell of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from affinityd.discovery import discover
from affinityd.discovery.nvml.report import NvmlGpu, NvmlReport
from affinityd.topology.model import Gpu, MigInstance, NvLinks, Topology
from tests.support.machines.sysfs_tree import files_of, tree_of

PCI = "sys/bus/pci/devices"
PROC = "proc/driver/nvidia/gpus"
KFD = "sys/class/kfd/kfd/topology/nodes"

Files = dict[str, object]

A, B, C = "0000:07:00.0", "0000:47:00.0", "0001:01:00.0"


def devices(code: str, vendor: str, *addresses: str) -> Files:
    texts = (f"{it}/class={code}; {it}/vendor={vendor};" for it in addresses)
    return files_of(PCI, "".join(texts))


def nvidia(*addresses: str) -> Files:
    return devices("0x030200", "0x10de", *addresses)


def information(address: str, **lines: object) -> Files:
    text = "\n".join(f"{name.replace('_', ' ')}: \t {value}" for name, value in lines.items())
    return {f"{PROC}/{address}/information": text}


def read(
    tmp_path: Path,
    files: Files,
    nvml: NvmlReport | None = None,
    links: dict[str, str] | None = None,
) -> Topology:
    machine = {"sys/devices/system/cpu/online": "0", **files}
    return discover(tree_of(tmp_path, machine, links), nvml)


def places(topology: Topology) -> list[tuple[int, str]]:
    return [(gpu.index, gpu.pci_bus_id) for gpu in topology.gpus]


@pytest.mark.parametrize(
    ("code", "vendor", "expected"),
    [
        pytest.param("0x030000", "0x10de", "nvidia", id="NVIDIA's display"),
        pytest.param("0x030200", "0x10de", "nvidia", id="NVIDIA's 3D controller"),
        pytest.param("0x030000", "0x1002", "amd", id="AMD's APU"),
        pytest.param("0x120000", "0x1002", "amd", id="AMD's accelerator"),
        pytest.param("0x120000", "0x19e5", "huawei", id="Huawei's Ascend"),
        pytest.param("0x120000", "0x1ED5", "1ed5", id="anybody's accelerator, by its digits"),
        pytest.param("0x030000", "0x1a03", None, id="ASPEED's display is a BMC's"),
        pytest.param("0x030000", "0x8086", None, id="Intel's display"),
        pytest.param("0x068000", "0x10de", None, id="NVIDIA's NVSwitch is a bridge"),
        pytest.param("0x040300", "0x10de", None, id="NVIDIA's audio function"),
        pytest.param("0x0b4000", "0x1bcf", None, id="a co-processor"),
        pytest.param("?", "0x10de", None, id="a device whose class cannot be read"),
    ],
)
def test_which_devices_are_gpus(
    tmp_path: Path, code: str, vendor: str, expected: str | None
) -> None:
    gpus = read(tmp_path, devices(code, vendor, A)).gpus
    assert [gpu.vendor for gpu in gpus] == ([expected] if expected else [])


@pytest.mark.parametrize("text", ["0x10d", "0x10de0", "0x10dg", "a\nb", "\x1b[2J", "１２３４"])
def test_what_is_no_vendors_number_is_nobody_s(tmp_path: Path, text: str) -> None:
    (gpu,) = read(tmp_path, devices("0x120000", text, A)).gpus
    assert (gpu.vendor, gpu.pci_id) == ("unknown", None)


@pytest.mark.parametrize(
    ("driver", "is_gpu"),
    [("vfio-pci", False), ("nvgrace_gpu_vfio_pci", False), ("nvidia", True), ("nouveau", True)],
)
def test_a_device_that_a_virtual_machine_may_have_is_no_gpu(
    tmp_path: Path, driver: str, is_gpu: bool
) -> None:
    links = {f"{PCI}/{A}/driver": f"../../../../bus/pci/drivers/{driver}"}
    assert bool(read(tmp_path, nvidia(A), links=links).gpus) == is_gpu


def test_gpus_come_by_vendor_and_each_vendors_are_counted_alone(tmp_path: Path) -> None:
    files = {
        **devices("0x120000", "0x1ed5", "0000:01:00.0"),
        **devices("0x120000", "0x19e5", "0000:02:00.0", "0000:04:00.0"),
        **devices("0x038000", "0x1002", "0000:03:00.0"),
        **nvidia("10000:01:00.0", "0000:81:00.0", "0000:0a:00.0"),
    }
    assert [(gpu.vendor, gpu.index, gpu.pci_bus_id) for gpu in read(tmp_path, files).gpus] == [
        ("nvidia", 0, "0000:0a:00.0"),
        ("nvidia", 1, "0000:81:00.0"),
        ("nvidia", 2, "10000:01:00.0"),
        ("amd", 0, "0000:03:00.0"),
        ("huawei", 0, "0000:02:00.0"),
        ("huawei", 1, "0000:04:00.0"),
        ("1ed5", 0, "0000:01:00.0"),
    ]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # No vendor file, and a class that other vendors' displays have, too.
        (
            {f"{PCI}/{A}/class": "0x030000", f"{PROC}/{A}/numa_status": ""},
            [Gpu(0, "nvidia", A, None)],
        ),
        # The bus does not show it.
        (information(A, Model="A100"), [Gpu(0, "nvidia", A, None, model="A100")]),
        (
            nvidia(A) | information(A, Model="A100", GPU_UUID="GPU-1a", Device_Minor=3),
            [Gpu(0, "nvidia", A, None, uuid="GPU-1a", minor=3, model="A100")],
        ),
        (
            nvidia(A) | information(A, GPU_UUID="GPU-????????-????-????-????-????????????"),
            [Gpu(0, "nvidia", A, None)],
        ),
        # It is excluded, and has no number.
        (
            nvidia(A, B) | information(A, GPU_Excluded="Yes") | information(B, GPU_Excluded="No"),
            [Gpu(0, "nvidia", B, None)],
        ),
    ],
)
def test_without_nvml_what_nvidias_driver_holds_is_a_gpu_of_which_it_tells(
    tmp_path: Path, files: Files, expected: list[Gpu]
) -> None:
    assert list(read(tmp_path, files, NvmlReport(gpus=None, error="no")).gpus) == expected


def test_nvmls_list_is_the_list_and_its_answers_come_first(tmp_path: Path) -> None:
    files = {
        **nvidia(A, B, C),
        f"{PCI}/{B}/device": "0x20B0",
        **information(B, Model="old", GPU_UUID="GPU-old", Device_Minor=9),
        **information(C, Model="NVIDIA H100", GPU_UUID="GPU-3c", Device_Minor=2),
    }
    first = NvmlGpu(0, "GPU-2b", B, 0, "NVIDIA A100", mig=("MIG-1", "MIG-2"), nvlinks={C: 4})
    second = NvmlGpu(1, None, C, None, None, error="Unknown Error")
    topology = read(tmp_path, files, NvmlReport(gpus=(first, second)))
    assert topology.gpus == (
        Gpu(
            *(0, "nvidia", B, None, None, "GPU-2b", 0, None, "NVIDIA A100", "10de:20b0"),
            mig=(MigInstance("MIG-1"), MigInstance("MIG-2")),
            nvlinks=(NvLinks(C, 4),),
        ),
        Gpu(1, "nvidia", C, None, uuid="GPU-3c", minor=2, model="NVIDIA H100"),
    )
    assert f"NVML does not list NVIDIA's {A}: left out" in topology.notices
    assert f"NVIDIA GPU 1 ({C}): Unknown Error" in topology.notices


def lost(index: int) -> NvmlGpu:
    return NvmlGpu(index, error="GPU is lost")


ALL = [(0, A), (1, B), (2, C)]
UNKNOWN = "left out: which PCI device it is is not known"


@pytest.mark.parametrize(
    ("listed", "expected", "notice"),
    [
        (
            [NvmlGpu(0, pci_bus_id=A), lost(1), NvmlGpu(2, pci_bus_id=C)],
            ALL,
            f"NVIDIA GPU 1: GPU is lost; taken to be {B}, which NVML does not name",
        ),
        (
            [lost(0), NvmlGpu(1, pci_bus_id=B), lost(2)],
            ALL,
            f"NVIDIA GPU 2: GPU is lost; taken to be {C}, which NVML does not name",
        ),
        # Two devices are left.
        (
            [NvmlGpu(0, pci_bus_id=A), lost(1)],
            [(0, A)],
            f"NVIDIA GPU 1: GPU is lost; {UNKNOWN}",
        ),
        ([], [], f"NVML does not list NVIDIA's {A}, {B}, {C}: left out"),
    ],
)
def test_a_gpu_that_is_lost_is_the_device_that_is_left(
    tmp_path: Path, listed: list[NvmlGpu], expected: list[tuple[int, str]], notice: str
) -> None:
    topology = read(tmp_path, nvidia(A, B, C), NvmlReport(gpus=tuple(listed)))
    assert places(topology) == expected
    assert notice in topology.notices


def test_a_gpu_that_only_nvml_knows_has_no_more_than_nvml_says(tmp_path: Path) -> None:
    nvml = NvmlReport(gpus=(NvmlGpu(0, "GPU-1", A), NvmlGpu(1, "GPU-2", "no address")))
    assert read(tmp_path, {}, nvml).gpus == (Gpu(0, "nvidia", A, None, uuid="GPU-1"),)


SILENT = NvmlReport(gpus=None, error="NVML did not start")
IN_ORDER = "NVIDIA's GPUs are numbered in PCI bus order"
NO_DRIVER = f"NVIDIA's driver does not hold {A}: no UUID and no minor are known"
NO_KFD = f"AMD's KFD lists no GPU (is amdgpu loaded?): {A} are numbered in PCI bus order"


@pytest.mark.parametrize(
    ("files", "nvml", "notice"),
    [
        ({}, None, "No GPU was found"),
        ({}, SILENT, "No GPU was found; NVML did not start"),
        (nvidia(A), SILENT, f"NVML did not start; {IN_ORDER}"),
        (nvidia(A), None, f"NVML was not asked; {IN_ORDER}"),
        (nvidia(A), None, NO_DRIVER),
        (devices("0x038000", "0x1002", A), None, NO_KFD),
    ],
)
def test_what_is_missing_is_said(
    tmp_path: Path, files: Files, nvml: NvmlReport | None, notice: str
) -> None:
    assert notice in read(tmp_path, files, nvml).notices


def test_a_machine_that_lacks_nothing_has_no_notices(tmp_path: Path) -> None:
    files = {**nvidia(A), **information(A), f"{PCI}/{A}/numa_node": "0"}
    nvml = NvmlReport(gpus=(NvmlGpu(0, "GPU-1", A, 0, "NVIDIA A100"),))
    node = {"sys/devices/system/node/node0/cpulist": "0"}
    assert read(tmp_path, {**files, **node}, nvml).notices == ()


def kfd(node: int, location: int, **properties: int) -> Files:
    lines = {"simd_count": 440, "location_id": location, "domain": 0, **properties}
    return {f"{KFD}/{node}/properties": "\n".join(f"{k} {v}" for k, v in lines.items())}


def test_amds_gpus_are_numbered_by_kfds_nodes_and_the_others_after_them(tmp_path: Path) -> None:
    """Each partition of one counts."""
    files = {
        **devices("0x038000", "0x1002", "0000:03:00.0", "0000:c1:00.0", "0000:c6:00.1"),
        **devices("0x038000", "0x1002", "0001:05:1f.0"),
        **kfd(0, 0, simd_count=0),
        **kfd(10, 0xC100, unique_id=0xAB, drm_render_minor=128),
        **kfd(11, 0x1000_C100, unique_id=2, drm_render_minor=129),
        **kfd(2, 0xC601, unique_id=0, drm_render_minor=0),
        **kfd(3, 0x05F8, domain=1, unique_id=2**64 - 1, drm_render_minor=131),
        **kfd(4, 0xEE00),
        f"{KFD}/5/properties": "",
        f"{PCI}/0000:c1:00.0/product_name": "AMD Instinct MI250X",
        f"{PCI}/0000:c6:00.1/product_name": "",
    }
    first, model = "GPU-00000000000000ab", "AMD Instinct MI250X"
    second, third = "GPU-0000000000000002", "GPU-ffffffffffffffff"
    topology = read(tmp_path, files)
    assert topology.gpus == (
        Gpu(0, "amd", "0000:c6:00.1", None),
        Gpu(1, "amd", "0001:05:1f.0", None, uuid=third, render_minor=131),
        Gpu(2, "amd", "0000:c1:00.0", None, uuid=first, render_minor=128, model=model),
        Gpu(3, "amd", "0000:c1:00.0", None, uuid=second, render_minor=129, model=model),
        Gpu(4, "amd", "0000:03:00.0", None),
    )
    unlisted = "AMD's KFD does not list 0000:03:00.0: numbered last, in PCI bus order"
    assert unlisted in topology.notices


def test_adapters_have_a_kind_names_and_a_place(tmp_path: Path) -> None:
    virtual = "0000:1a:00.0/virtio3/net/eth0/x"
    files = {
        **devices("0x020700", "0x15b3", "0000:18:00.0"),
        **devices("0x020000", "0x15b3", "0000:19:00.0"),
        **devices("0x028000", "0x8086", "0000:1a:00.0"),
        **files_of(PCI, f"0000:18:00.0/net/ib0/x=; 0000:18:00.0/infiniband/mlx5_0/x=; {virtual}="),
        f"{PCI}/0000:19:00.0/net/enx001122334455/address": "00:11:22:33:44:55",
        f"{PCI}/0000:19:00.0/net/enp25s0f0np0/address": "00:11:22:33:44:55",
    }
    nics = read(tmp_path, files).nics
    assert [(nic.pci_bus_id, nic.kind, nic.names) for nic in nics] == [
        ("0000:18:00.0", "infiniband", ("mlx5_0", "ib0")),
        ("0000:19:00.0", "ethernet", ("enp25s0f0np0",)),
        ("0000:1a:00.0", "network", ("eth0",)),
    ]


@pytest.mark.parametrize(
    ("folder", "path"),
    [
        ("pci0000:17/0000:17:00.0", ("pci0000:17", "0000:17:00.0", A)),
        ("platform/10000000.pcie/pci0000:00", ("pci0000:00", A)),
        ("odd", ()),
    ],
)
def test_the_pci_path_begins_at_the_host_bridge(
    tmp_path: Path, folder: str, path: tuple[str, ...]
) -> None:
    files = files_of(f"sys/devices/{folder}/{A}", "class=0x030200; vendor=0x10de")
    links = {f"{PCI}/{A}": f"../../../devices/{folder}/{A}"}
    (gpu,) = read(tmp_path, files, links=links).gpus
    assert gpu.pci_path == path
