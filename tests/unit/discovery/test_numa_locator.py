"""On which NUMA node a GPU is, and what said so."""

from __future__ import annotations

from pathlib import Path

import pytest

from affinityd.cpuset import parse_list
from affinityd.discovery import discover
from affinityd.discovery.nvml.report import NvmlGpu, NvmlReport
from tests.support.machines.sysfs_tree import files_of, tree_of

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
BRIDGE = "local_cpulist of bridge"
ROWS = {
    "numa_node decides": ("numa_node=1", "", "0-1", (1, "numa_node")),
    "and may have no CPU": ("numa_node=4; local_cpulist=0-1", "", "", (4, "numa_node")),
    "it is -1: NVML does": ("numa_node=-1; local_cpulist=0-1", "", "2-3", (1, "NVML")),
    "no such node is there": ("numa_node=2; local_cpulist=2", "", "", (1, "local_cpulist")),
    "it is missing": ("local_cpulist=2-3", "", "", (1, "local_cpulist")),
    "an old kernel has a mask": ("local_cpus=00000003", "", "", (0, "local_cpulist")),
    "NVML's CPUs span nodes": ("local_cpulist=0-1", "", "0-3", (0, "local_cpulist")),
    "offline CPUs do not count": ("local_cpulist=1,4-5", "", "", (0, "local_cpulist")),
    "the device's span nodes: its nearest bridge decides": (
        "local_cpulist=0-3",
        f"{NEAR}/local_cpulist=2-3; {FAR}/local_cpulist=0-1",
        "",
        (1, f"{BRIDGE} {NEAR}"),
    ),
    "the nearest bridge's span nodes too: the next decides": (
        "",
        f"{NEAR}/local_cpulist=1-2; {FAR}/local_cpus=3",
        "",
        (0, f"{BRIDGE} {FAR}"),
    ),
    "everything spans nodes": ("numa_node=-1; local_cpulist=0-3", "", "0-3", (None, None)),
    "only offline CPUs": ("local_cpulist=4-5", "", "", (None, None)),
    "nothing says anything": ("", "", "", (None, None)),
}


@pytest.mark.parametrize(("of_gpu", "of_bridges", "nvml", "expected"), ROWS.values(), ids=ROWS)
def test_the_node_of_a_gpu_and_what_said_so(
    tmp_path: Path, of_gpu: str, of_bridges: str, nvml: str, expected: tuple[int | None, str | None]
) -> None:
    files = {**MACHINE, **files_of(REAL, of_gpu), **files_of(PCI, of_bridges)}
    tree = tree_of(tmp_path, files, {f"{PCI}/{GPU}": f"../../../{REAL.removeprefix('sys/')}"})
    said = NvmlReport(gpus=(NvmlGpu(0, pci_bus_id=GPU, node_cpus=parse_list(nvml)),))
    topology = discover(tree, said)
    (gpu,) = topology.gpus
    assert (gpu.numa_node, gpu.numa_source) == expected
    assert gpu.pci_path == ("pci0000:00", FAR, NEAR, GPU)
    notice = f"The machine does not say on which NUMA node these GPUs are: {GPU}"
    assert (notice in topology.notices) == (gpu.numa_node is None)


def test_nvmls_socket_decides_where_it_knows_no_node(tmp_path: Path) -> None:
    said = NvmlReport(gpus=(NvmlGpu(0, pci_bus_id=GPU, socket_cpus=frozenset({2, 3})),))
    (gpu,) = discover(tree_of(tmp_path, MACHINE), said).gpus
    assert (gpu.numa_node, gpu.numa_source) == (1, "NVML")
