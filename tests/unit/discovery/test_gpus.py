"""The numbers of GPUs, and their facts from drivers and NVML, whose reports are read from JSON."""

from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.discovery import discover
from affinityd.discovery.nvml import (
    NvmlGpu,
    NvmlReport,
    ProcessReport,
    read_report,
)
from affinityd.topology.model import Gpu, MigInstance, Topology
from tests.support.machines.sysfs_tree import pci_devices, tree_of

PCI = "sys/bus/pci/devices"
PROC = "proc/driver/nvidia/gpus"
KFD = "sys/class/kfd/kfd/topology/nodes"

Files = dict[str, object]

A, B, C = "0000:07:00.0", "0000:47:00.0", "0001:01:00.0"


def nvidia(*addresses: str) -> Files:
    return pci_devices("0x030200", "0x10de", *addresses)


def information(address: str, **lines: object) -> Files:
    text = "\n".join(f"{name.replace('_', ' ')}: \t {value}" for name, value in lines.items())
    return {f"{PROC}/{address}/information": text}


def read(tmp_path: Path, files: Files, nvml: NvmlReport | None = None) -> Topology:
    return discover(tree_of(tmp_path, {"sys/devices/system/cpu/online": "0", **files}), nvml)


def places(topology: Topology) -> list[tuple[str, int, str]]:
    return [(gpu.vendor, gpu.index, gpu.pci_bus_id) for gpu in topology.gpus]


def test_each_vendor_s_gpus_are_numbered_from_0(tmp_path: Path) -> None:
    files = {
        **pci_devices("0x120000", "0x1ed5", "0000:01:00.0"),
        **pci_devices("0x120000", "0x19e5", "0000:02:00.0", "0000:04:00.0"),
        **pci_devices("0x038000", "0x1002", "0000:03:00.0"),
        **nvidia("10000:01:00.0", "0000:81:00.0", "0000:0a:00.0"),
    }
    assert places(read(tmp_path, files)) == [
        ("nvidia", 0, "0000:0a:00.0"),
        ("nvidia", 1, "0000:81:00.0"),
        ("nvidia", 2, "10000:01:00.0"),
        ("amd", 0, "0000:03:00.0"),
        ("huawei", 0, "0000:02:00.0"),
        ("huawei", 1, "0000:04:00.0"),
        ("1ed5", 0, "0000:01:00.0"),
    ]


GPU = Gpu(0, "nvidia", A, None)
HIDDEN_UUID = "GPU-????????-????-????-????-????????????"
TOLD = {"Model": "A100", "GPU_UUID": "GPU-1a", "Device_Minor": 3}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # The GPU has no vendor file, and its class is also that of other vendors' displays.
        ({f"{PCI}/{A}/class": "0x030000", f"{PROC}/{A}/numa_status": ""}, GPU),
        # The PCI bus does not show the GPU.
        (information(A, Model="A100"), replace(GPU, model="A100")),
        (nvidia(A) | information(A, **TOLD), replace(GPU, uuid="GPU-1a", minor=3, model="A100")),
        (nvidia(A) | information(A, GPU_UUID=HIDDEN_UUID), GPU),
        # The GPU is excluded, and has no number.
        (nvidia(A, B) | information(A, GPU_Excluded="Yes"), replace(GPU, pci_bus_id=B)),
        (nvidia(A) | information(A, GPU_Excluded="No"), GPU),
    ],
)
def test_a_device_listed_by_nvidia_s_driver_is_a_gpu(
    tmp_path: Path, files: Files, expected: Gpu
) -> None:
    assert read(tmp_path, files, NvmlReport(gpus=None, error="no")).gpus == (expected,)


def test_nvml_s_list_and_answers_take_precedence_over_the_driver_s(tmp_path: Path) -> None:
    files = {
        **nvidia(A, B, C),
        f"{PCI}/{B}/device": "0x20B0",
        **information(B, Model="old", GPU_UUID="GPU-old", Device_Minor=9),
        **information(C, Model="NVIDIA H100", GPU_UUID="GPU-3c", Device_Minor=2),
    }
    first = NvmlGpu(0, "GPU-2b", B, 0, "NVIDIA A100", mig=("MIG-1", "MIG-2"))
    second = NvmlGpu(1, None, C, None, None, error="Unknown Error")
    topology = read(tmp_path, files, NvmlReport(gpus=(first, second)))
    assert topology.gpus == (
        Gpu(
            *(0, "nvidia", B, None, None, "GPU-2b", 0, None, "NVIDIA A100", "10de:20b0"),
            mig=(MigInstance("MIG-1"), MigInstance("MIG-2")),
        ),
        Gpu(1, "nvidia", C, None, uuid="GPU-3c", minor=2, model="NVIDIA H100"),
    )
    assert f"NVML does not list NVIDIA's {A}: left out" in topology.notices
    assert f"NVIDIA GPU 1 ({C}): Unknown Error" in topology.notices


def lost(index: int) -> NvmlGpu:
    return NvmlGpu(index, error="GPU is lost")


def known(index: int) -> NvmlGpu:
    return NvmlGpu(index, pci_bus_id=(A, B, C)[index])


LOST = "NVIDIA GPU {}: GPU is lost; "
TAKEN = LOST + "assumed to be {}, which NVML does not list"
UNKNOWN = "left out: its PCI device is not known"


@pytest.mark.parametrize(
    ("listed", "found", "notice"),
    [
        ([known(0), lost(1), known(2)], 3, TAKEN.format(1, B)),
        ([lost(0), known(1), lost(2)], 3, TAKEN.format(2, C)),
        ([known(0), lost(1)], 1, LOST.format(1) + UNKNOWN),  # two devices are left
        ([], 0, f"NVML does not list NVIDIA's {A}, {B}, {C}: left out"),
    ],
)
def test_a_lost_gpu_is_matched_to_the_only_device_that_nvml_does_not_list(
    tmp_path: Path, listed: list[NvmlGpu], found: int, notice: str
) -> None:
    topology = read(tmp_path, nvidia(A, B, C), NvmlReport(gpus=tuple(listed)))
    assert places(topology) == [("nvidia", 0, A), ("nvidia", 1, B), ("nvidia", 2, C)][:found]
    assert notice in topology.notices


SILENT = NvmlReport(gpus=None, error="NVML did not start")
IN_ORDER = "NVIDIA's GPUs are numbered in PCI bus order"
NO_DRIVER = f"NVIDIA's driver does not list {A}: no UUID and no minor are known"
NO_KFD = f"AMD's KFD lists no GPU (is amdgpu loaded?): {A} are numbered in PCI bus order"


@pytest.mark.parametrize(
    ("files", "nvml", "notice"),
    [
        ({}, None, "No GPU was found"),
        ({}, SILENT, "No GPU was found; NVML did not start"),
        (nvidia(A), SILENT, f"NVML did not start; {IN_ORDER}"),
        (nvidia(A), None, f"NVML was not asked; {IN_ORDER}"),
        (nvidia(A), None, NO_DRIVER),
        (pci_devices("0x038000", "0x1002", A), None, NO_KFD),
    ],
)
def test_notices_name_missing_facts(
    tmp_path: Path, files: Files, nvml: NvmlReport | None, notice: str
) -> None:
    assert notice in read(tmp_path, files, nvml).notices


def kfd(node: int, location: int, **properties: int) -> Files:
    lines = {"simd_count": 440, "location_id": location, "domain": 0, **properties}
    return {f"{KFD}/{node}/properties": "\n".join(f"{k} {v}" for k, v in lines.items())}


def test_amd_s_gpus_are_numbered_in_the_order_of_kfd_s_nodes(tmp_path: Path) -> None:
    files = {
        **pci_devices("0x038000", "0x1002", "0000:03:00.0", "0000:c1:00.0", "0000:c6:00.1"),
        **pci_devices("0x038000", "0x1002", "0001:05:1f.0"),
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


#: Two MI300X, on the nodes 0 and 1 of their host.
MI300X = {"0000:05:00.0": 0, "0000:85:00.0": 1}
#: How amdgpu's releases write a partition's number into KFD's location_id.
IN_HIGH_BITS, AS_FUNCTION = 28, 0


@pytest.mark.parametrize("place", [IN_HIGH_BITS, AS_FUNCTION])
@pytest.mark.parametrize(("mode", "partitions"), [("SPX", 1), ("DPX", 2), ("QPX", 4), ("CPX", 8)])
def test_partitions_of_an_mi300x_have_its_address_and_node(
    tmp_path: Path, mode: str, partitions: int, place: int
) -> None:
    files: Files = pci_devices("0x120000", "0x1002", *MI300X)
    for cpu, node in enumerate(MI300X.values()):
        files[f"sys/devices/system/node/node{node}/cpulist"] = cpu
    minors = iter(range(128, 200))
    for number, (address, node) in enumerate(MI300X.items()):
        files[f"{PCI}/{address}/numa_node"] = node
        files[f"{PCI}/{address}/current_compute_partition"] = mode
        bus = int(address[5:7], 16) << 8
        for partition in range(partitions):
            minor = next(minors)
            location = bus | partition << place
            files |= kfd(2 + 10 * number + partition, location, drm_render_minor=minor)
            if partition:  # partition 0 has the PCI device's own render node
                files[f"sys/devices/platform/amdgpu_xcp_{minor}/drm/renderD{minor}/dev"] = "226:1"
    topology = read(tmp_path, {**files, "sys/devices/system/cpu/online": "0-1"})
    assert [(gpu.index, gpu.pci_bus_id, gpu.numa_node) for gpu in topology.gpus] == [
        (index, address, MI300X[address])
        for index, address in enumerate(it for it in MI300X for _ in range(partitions))
    ]
    assert [gpu.render_minor for gpu in topology.gpus] == [*range(128, 128 + 2 * partitions)]
    assert topology.notices == ()


@pytest.mark.parametrize(
    ("kind", "text", "complaint"),
    [
        (NvmlReport, "NVRM: oops", "is 'NVRM: oops', not JSON"),
        (NvmlReport, '{"gpus": [{}]}', ".gpus[0] has no 'index'"),
        (NvmlReport, '{"gpus": [{"index": 0}, {"index": 0}]}', " has two GPUs of one index"),
        (NvmlReport, '{"gpus": [{"index": 0, "node_cpus": "8-"}]}', "'8-' is not a CPU"),
        (ProcessReport, "NVRM: oops", "is 'NVRM: oops', not JSON"),
        (ProcessReport, '{"gpus": [{"index": 0, "processes": [{}]}]}', "[0] has no 'pid'"),
    ],
)
def test_a_malformed_report_is_refused_in_one_line(
    kind: type[NvmlReport], text: str, complaint: str
) -> None:
    with pytest.raises(ValueError, match=r"\ANVML's report.*\Z") as refusal:
        read_report(kind, text)
    assert complaint in str(refusal.value)
