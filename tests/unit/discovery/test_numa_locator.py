from __future__ import annotations

from pathlib import Path

import pytest

from affinityd.cpuset import parse_list
from affinityd.discovery import discover
from affinityd.discovery.nvml.report import NvmlGpu, NvmlReport
from tests.support.machines.sysfs_tree import tree_of

NODE = "sys/devices/system/node"
PCI = "sys/bus/pci/devices"
GPU = f"{PCI}/0000:07:00.0"
NEAR, FAR = "0000:02:00.0", "0000:00:01.0"

Files = dict[str, object]

#: Nodes 0 and 1 with two CPUs each, of which 5 is offline, and node 4 without any.
MACHINE: Files = {
    "sys/devices/system/cpu/online": "0-3",
    f"{NODE}/node0/cpulist": "0-1,4",
    f"{NODE}/node1/cpulist": "2-3,5",
    f"{NODE}/node4/cpulist": "",
    f"{GPU}/class": "0x030200",
    f"{GPU}/vendor": "0x10de",
}


@pytest.mark.parametrize(
    ("files", "nvml_cpus", "expected"),
    [
        pytest.param({f"{GPU}/numa_node": 1}, "0-1", (1, "numa_node"), id="numa_node decides"),
        pytest.param(
            {f"{GPU}/numa_node": 4, f"{GPU}/local_cpulist": "0-1"},
            "",
            (4, "numa_node"),
            id="a node without CPUs stays the GPU's",
        ),
        pytest.param(
            {f"{GPU}/numa_node": -1, f"{GPU}/local_cpulist": "0-1"},
            "2-3",
            (1, "NVML"),
            id="numa_node is -1: NVML decides",
        ),
        pytest.param(
            {f"{GPU}/numa_node": 2, f"{GPU}/local_cpulist": "2"},
            "",
            (1, "local_cpulist"),
            id="numa_node is a node that does not exist: local_cpulist decides",
        ),
        pytest.param(
            {f"{GPU}/local_cpulist": "2-3"}, "", (1, "local_cpulist"), id="numa_node is missing"
        ),
        pytest.param(
            {f"{GPU}/local_cpus": "00000003"},
            "",
            (0, "local_cpulist"),
            id="an old kernel has the CPUs as a mask only",
        ),
        pytest.param(
            {f"{GPU}/local_cpulist": "0-1"},
            "0-3",
            (0, "local_cpulist"),
            id="NVML's CPUs span nodes: they decide nothing",
        ),
        pytest.param(
            {f"{GPU}/local_cpulist": "1,4-5"},
            "",
            (0, "local_cpulist"),
            id="offline CPUs do not count",
        ),
        pytest.param(
            {
                f"{GPU}/local_cpulist": "0-3",
                f"{PCI}/{NEAR}/local_cpulist": "2-3",
                f"{PCI}/{FAR}/local_cpulist": "0-1",
            },
            "",
            (1, f"local_cpulist of bridge {NEAR}"),
            id="the device's CPUs span nodes: its nearest bridge decides",
        ),
        pytest.param(
            {f"{PCI}/{NEAR}/local_cpulist": "1-2", f"{PCI}/{FAR}/local_cpus": "3"},
            "",
            (0, f"local_cpulist of bridge {FAR}"),
            id="the nearest bridge's span nodes too: the next decides",
        ),
        pytest.param(
            {f"{GPU}/numa_node": -1, f"{GPU}/local_cpulist": "0-3"},
            "0-3",
            (None, None),
            id="everything spans nodes: unknown",
        ),
        pytest.param(
            {f"{GPU}/local_cpulist": "4-5"}, "", (None, None), id="only offline CPUs: unknown"
        ),
        pytest.param({}, "", (None, None), id="nothing says anything: unknown"),
    ],
)
def test_the_node_of_a_gpu_and_what_said_so(
    tmp_path: Path, files: Files, nvml_cpus: str, expected: tuple[int | None, str | None]
) -> None:
    real = f"sys/devices/pci0000:00/{FAR}/{NEAR}/0000:07:00.0"
    moved = {path.replace(GPU, real): text for path, text in {**MACHINE, **files}.items()}
    tree = tree_of(tmp_path, moved, {GPU: f"../../../{real.removeprefix('sys/')}"})
    nvml_gpu = NvmlGpu(0, pci_bus_id="0000:07:00.0", node_cpus=parse_list(nvml_cpus))
    (gpu,) = discover(tree, NvmlReport(gpus=(nvml_gpu,))).gpus
    assert (gpu.numa_node, gpu.numa_source) == expected
    assert gpu.pci_path == ("pci0000:00", FAR, NEAR, "0000:07:00.0")


def test_nvmls_socket_decides_where_it_knows_no_node(tmp_path: Path) -> None:
    nvml_gpu = NvmlGpu(0, pci_bus_id="0000:07:00.0", socket_cpus=frozenset({2, 3}))
    (gpu,) = discover(tree_of(tmp_path, MACHINE), NvmlReport(gpus=(nvml_gpu,))).gpus
    assert (gpu.numa_node, gpu.numa_source) == (1, "NVML")


def test_a_gpu_of_unknown_node_is_named_in_a_notice(tmp_path: Path) -> None:
    notices = discover(tree_of(tmp_path, MACHINE), None).notices
    assert "The machine does not say on which NUMA node these GPUs are: 0000:07:00.0" in notices
