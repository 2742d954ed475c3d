"""Questions that a plan asks of a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from affinityd.cpuset import format_list
from affinityd.topology.model import Gpu, Nic, NumaNode, NvLinks
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine

#: Node 1 has no CPUs, node 3 no memory; CPUs 8-9 are in no node.
ODD = made(
    {0: "0-3", 1: "", 3: "4-7"},
    gpus=[1],
    packages={0: "0-9"},
    memoryless=[3],
    distances=[("0", "1", 20), ("1", "3", 30), ("0", "3", 40)],
)


def test_online_cpus_are_those_of_the_cores() -> None:
    assert format_list(machine("power9").online) == format_list(
        cpu for core in machine("power9").cores for cpu in core.cpus
    )
    assert machine("stray-cpus").online != machine("stray-cpus").possible


def test_a_node_knows_its_cores_in_order() -> None:
    assert [core.cpus for core in machine("dgx-1v").node_cores[1]][:2] == [(20, 60), (21, 61)]


def test_a_process_can_run_on_the_nodes_with_cpus_and_on_the_cpus_of_no_node() -> None:
    assert ODD.nodes_with_cpus == (0, 3, None)


@pytest.mark.parametrize(
    ("number", "cpus"),
    [(0, "0-3"), (1, ""), (3, "4-7"), (None, "8-9"), (17, "")],
    ids=["a node", "a node without CPUs", "another node", "no node", "a node that is not there"],
)
def test_a_node_knows_its_cpus(number: int | None, cpus: str) -> None:
    assert format_list(ODD.cpus_of_node(number)) == cpus


@pytest.mark.parametrize(
    ("start", "end", "distance"),
    [
        pytest.param(0, 3, 40, id="as the firmware says it"),
        pytest.param(3, 3, 10, id="to itself"),
        pytest.param(0, None, float("inf"), id="the CPUs of no node are farthest"),
        pytest.param(None, 0, float("inf"), id="from nowhere all is farthest"),
        pytest.param(0, 17, float("inf"), id="what is missing is farthest"),
        pytest.param(17, 0, float("inf"), id="from a node that is not there all is farthest"),
    ],
)
def test_distances(start: int | None, end: int | None, distance: float) -> None:
    assert ODD.distance(start, end) == distance


@pytest.mark.parametrize(
    ("start", "candidates", "nearest"),
    [
        pytest.param(0, [0, 3], (0,), id="a node is nearest to itself"),
        pytest.param(1, [0, 3], (0,), id="the least distance is nearest"),
        pytest.param(3, [0, None], (0,), id="a known distance is nearer than none"),
        pytest.param(1, [None], (None,), id="what is alone is nearest"),
        pytest.param(17, [0, 3], (0, 3), id="all are tied from a node without distances"),
        pytest.param(None, [0, None], (0, None), id="all are tied from an unknown node"),
    ],
)
def test_the_nearest_nodes(
    start: int | None, candidates: list[int | None], nearest: tuple[int | None, ...]
) -> None:
    assert ODD.nearest(start, candidates) == nearest


@pytest.mark.parametrize(
    ("name", "home", "node"),
    [
        pytest.param("dgx-a100", 3, 3, id="a node of unknown memory is taken to have some"),
        pytest.param("threadripper-2990wx", 2, 2, id="a node with memory is its own"),
        pytest.param("threadripper-2990wx", 1, 0, id="without memory the nearest, then lowest"),
        pytest.param("gh200x4", 1, 1, id="GPU memory is no nearer than a node's own"),
        pytest.param("stray-cpus", None, None, id="the CPUs of no node have no memory node"),
    ],
)
def test_a_home_node_s_memory(name: str, home: int | None, node: int | None) -> None:
    assert machine(name).memory_node(home) == node


def test_memory_is_the_home_node_s_where_no_node_has_any() -> None:
    assert made({0: "0", 1: "1"}, memoryless=[0, 1]).memory_node(1) == 1


def test_nodes_are_in_order_of_number_and_the_one_without_is_last() -> None:
    nodes = [NumaNode(None), NumaNode(8), NumaNode(0)]
    assert [node.number for node in sorted(nodes, key=lambda node: node.order)] == [0, 8, None]


@pytest.mark.parametrize(
    ("gpu_path", "nic_path", "word"),
    [
        pytest.param("h/switch/p0/GPU", "h/switch/p1/NIC", "PIX", id="ports of one switch"),
        pytest.param("h/switch/GPU", "h/switch/NIC", "PIX", id="beneath one bridge"),
        pytest.param("h/up/a/b/GPU", "h/up/c/NIC", "PXB", id="several bridges, one host bridge"),
        pytest.param("h/p0/GPU", "h/p1/NIC", "PHB", id="one host bridge"),
        pytest.param("h0/p0/GPU", "h1/p0/NIC", "NODE", id="host bridges of one node"),
    ],
)
def test_nearness_is_in_the_words_of_nvidia_smi(gpu_path: str, nic_path: str, word: str) -> None:
    gpu = Gpu(0, "nvidia", "GPU", numa_node=0, pci_path=tuple(gpu_path.split("/")))
    nic = Nic("NIC", numa_node=0, kind="ethernet", pci_path=tuple(nic_path.split("/")))
    assert machine("laptop").nearness(gpu, nic) == word


@pytest.mark.parametrize(
    ("gpu_node", "nic_node"),
    [(0, 1), (None, None), (None, 0)],
    ids=["two nodes", "both unknown", "one unknown"],
)
def test_a_nic_of_another_or_an_unknown_node_is_across_the_system(
    gpu_node: int | None, nic_node: int | None
) -> None:
    nic = Nic("NIC", nic_node, "ethernet")
    assert machine("laptop").nearness(Gpu(0, "nvidia", "GPU", gpu_node), nic) == "SYS"


def test_an_index_means_the_first_gpu_s_vendor() -> None:
    assert machine("two-vendors").vendor == "nvidia"
    assert machine("laptop").vendor is None
    assert replace(machine("two-vendors"), gpus=machine("mi250x").gpus).vendor == "amd"


def test_a_gpu_with_links_is_still_a_key() -> None:
    """What a request grants is looked up in sets of devices."""
    gpu = Gpu(0, "nvidia", "0000:01:00.0", numa_node=0, nvlinks=(NvLinks("0000:02:00.0", 4),))
    assert {gpu: 1}[replace(gpu)] == 1
    assert gpu != replace(gpu, nvlinks=())
