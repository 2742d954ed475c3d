"""NUMA nodes, with their CPUs, distances and memory; on which a GPU is, and what said so."""

from __future__ import annotations

from pathlib import Path

import pytest

from affinityd.cpuset import format_list, parse_list
from affinityd.discovery import discover
from affinityd.discovery.nvml.report import NvmlGpu, NvmlReport
from affinityd.topology.model import Topology
from tests.support.machines.sysfs_tree import files_of, tree_of
from tests.support.tables import rows

SYSTEM = "sys/devices/system"


def read(tmp_path: Path, files: str, siblings: str = "0") -> Topology:
    """Read a machine of four CPUs and these files below the folder of nodes."""
    cpu = files_of(f"{SYSTEM}/cpu", f"online=0-3; cpu0/topology/thread_siblings_list={siblings}")
    return discover(tree_of(tmp_path, {**cpu, **files_of(f"{SYSTEM}/node", files)}), None)


@pytest.mark.parametrize(
    ("files", "expected"),
    rows("""
    no node folder: one without a number | | None:0-3
    sparse numbers | node0/cpulist=0-1; node8/cpulist=2-3 | 0:0-1 8:2-3
    offline CPUs do not count | node0/cpulist=0-87; node1/cpulist=88-175 | 0:0-3 1:
    the lowest that lists a CPU | node0/cpulist=0-3; node1/cpulist=0-3 | 0:0-3 1:
    CPUs that no node lists come last | node1/cpulist=1,3 | 1:1,3 None:0,2
    NULs, and an empty list | node0/cpulist=0-3\0; node1/cpulist=; online=0-1\0 | 0:0-3 1:
    an old kernel has masks | node0/cpumap=00000000,00000003; node1/cpumap=c | 0:0-1 1:2-3
    ordered as numbers | node10/cpulist=0-1; node9/cpulist=2-3; power/x= | 9:2-3 10:0-1
    """),
)
def test_nodes_and_their_cpus(tmp_path: Path, files: str, expected: str) -> None:
    topology = read(tmp_path, files)
    cpus = (f"{it.number}:{format_list(topology.cpus_of_node(it.number))}" for it in topology.nodes)
    assert [*cpus] == expected.split()


def test_a_core_is_on_its_first_cpu_s_node_whole(tmp_path: Path) -> None:
    topology = read(tmp_path, "node0/cpulist=0-1; node1/cpulist=2-3", siblings="0,3")
    assert [format_list(topology.cpus_of_node(node)) for node in (0, 1)] == ["0-1,3", "2"]


NO_MORE = "node1/cpulist="


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # Without node/online, the columns are the nodes that exist; else those of it, ascending.
        ("node0/distance=10 21; node8/distance=21 10", {0: {0: 10, 8: 21}, 8: {0: 21, 8: 10}}),
        ("online=8,0-1; node8/distance=21 31 10", {8: {0: 21, 1: 31, 8: 10}}),
        # A row may be too short, or missing, or too long; what is no number is missing.
        (f"node0/distance=10; {NO_MORE}", {0: {0: 10}, 1: {}}),
        ("online=1; node1/distance=21 10", {1: {1: 21}}),
        (f"online=?; node0/distance=x 20; {NO_MORE}", {0: {1: 20}, 1: {}}),
    ],
)
def test_distances(tmp_path: Path, files: str, expected: dict[int, dict[int, int]]) -> None:
    nodes = read(tmp_path, files).nodes
    assert {it.number: it.distances for it in nodes if it.number is not None} == expected


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("Node 0 MemTotal:       16772456 kB\nNode 0 MemFree:  1 kB", 16772456 * 1024),
        ("Node 0 MemTotal:              0 kB", 0),
        ("Node 0 MemFree:  1 kB", None),
        ("", None),
    ],
)
def test_memory_is_in_bytes(tmp_path: Path, text: str, memory: int | None) -> None:
    assert read(tmp_path, f"node0/meminfo={text}").node_of[0].memory_bytes == memory


@pytest.mark.parametrize(
    ("files", "notice"),
    [
        ("", "The kernel shows no NUMA nodes: all CPUs are treated as one node"),
        (
            "node1/cpulist=1,3",
            "CPUs 0,2 are in no NUMA node: treated as one, far from all others",
        ),
    ],
)
def test_what_is_odd_about_the_nodes_is_said(tmp_path: Path, files: str, notice: str) -> None:
    assert notice in read(tmp_path, files).notices


# On which node a GPU is, and what said so.

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
