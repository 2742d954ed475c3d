"""On which NUMA node a GPU is, and what said so."""

from __future__ import annotations

from pathlib import Path

import pytest

from affinityd.cpuset import parse_list
from affinityd.discovery import discover
from affinityd.discovery.nvml.report import NvmlGpu, NvmlReport
from tests.support.machines.sysfs_tree import files_of, tree_of
from tests.support.tables import rows

PCI = "sys/bus/pci/devices"
GPU, NEAR, FAR = "0000:07:00.0", "0000:02:00.0", "0000:00:01.0"
#: The GPU's folder, below two bridges.
REAL = f"sys/devices/pci0000:00/{FAR}/{NEAR}/{GPU}"

#: Nodes 0 and 1 with two CPUs each, of which 5 is offline, and node 4 without any.
MACHINE = {
    "sys/devices/system/cpu/online": "0-3",
    **files_of("sys/devices/system", "node/node0/cpulist=0-1,4; node/node1/cpulist=2-3,5"),
    "sys/devices/system/node/node4/cpulist": "",
    **files_of(REAL, "class=0x030200; vendor=0x10de"),
}
LOCAL, BRIDGE = "local_cpulist", "local_cpulist of bridge"


@pytest.mark.parametrize(
    ("of_gpu", "of_bridges", "nvml", "expected"),
    rows(f"""
    numa_node decides | numa_node=1 | | 0-1 | 1 numa_node
    and may have no CPU | numa_node=4; {LOCAL}=0-1 | | | 4 numa_node
    it is -1: NVML does | numa_node=-1; {LOCAL}=0-1 | | 2-3 | 1 NVML
    no such node is there | numa_node=2; {LOCAL}=2 | | | 1 {LOCAL}
    an old kernel has a mask | local_cpus=00000003 | | | 0 {LOCAL}
    NVML's CPUs span nodes | {LOCAL}=0-1 | | 0-3 | 0 {LOCAL}
    offline CPUs do not count | {LOCAL}=1,4-5 | | | 0 {LOCAL}
    the bridge | {LOCAL}=0-3 | {NEAR}/{LOCAL}=2-3; {FAR}/{LOCAL}=0-1 | | 1 {BRIDGE} {NEAR}
    the next bridge | | {NEAR}/{LOCAL}=1-2; {FAR}/local_cpus=3 | | 0 {BRIDGE} {FAR}
    everything spans nodes | numa_node=-1; {LOCAL}=0-3 | | 0-3 | None None
    only offline CPUs | {LOCAL}=4-5 | | | None None
    nothing says anything | | | | None None
    """),
)
def test_the_node_of_a_gpu_and_what_said_so(
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


def test_nvmls_socket_decides_where_it_knows_no_node(tmp_path: Path) -> None:
    said = NvmlReport(gpus=(NvmlGpu(0, pci_bus_id=GPU, socket_cpus=frozenset({2, 3})),))
    (gpu,) = discover(tree_of(tmp_path, MACHINE), said).gpus
    assert (gpu.numa_node, gpu.numa_source) == (1, "NVML")
