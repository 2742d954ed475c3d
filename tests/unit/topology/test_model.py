"""Questions that a plan asks of a machine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from affinityd.cpuset import format_list
from affinityd.topology.model import Gpu, Nic, Topology
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine

Nodes = Sequence[int | None]

#: Node 1 has no CPUs, node 3 no memory; CPUs 8-9 are in no node.
ODD = made(
    {0: "0-3", 1: "", 3: "4-7"},
    gpus=[1],
    packages={0: "0-9"},
    memoryless=[3],
    distances=[("0", "1", 20), ("1", "3", 30), ("0", "3", 40)],
)


def test_a_node_has_its_cores_in_order_and_its_cpus() -> None:
    assert [core.cpus for core in machine("dgx-1v").node_cores[1]][:2] == [(20, 60), (21, 61)]
    cpus = {number: format_list(ODD.cpus_of_node(number)) for number in (0, 1, 3, None, 17)}
    assert cpus == {0: "0-3", 1: "", 3: "4-7", None: "8-9", 17: ""}
    assert ODD.nodes_with_cpus == (0, 3, None)
    assert [it.order for it in ODD.nodes] == [(False, 0), (False, 1), (False, 3), (True, 0)]


def test_a_missing_distance_is_farthest() -> None:
    assert (ODD.distance(0, 3), ODD.distance(3, 3)) == (40, 10)
    unknown = (0, None), (None, 0), (0, 17), (17, 0)
    assert {ODD.distance(*ends) for ends in unknown} == {float("inf")}


@pytest.mark.parametrize(
    ("start", "candidates", "nearest"),
    [
        (0, [0, 3], (0,)),
        (1, [0, 3], (0,)),
        (3, [0, None], (0,)),  # a known distance is nearer than none
        (1, [None], (None,)),  # what is alone is nearest
        (17, [0, 3], (0, 3)),  # all are tied from a node without distances, or an unknown one
        (None, [0, None], (0, None)),
    ],
)
def test_the_nearest_nodes(start: int | None, candidates: Nodes, nearest: Nodes) -> None:
    assert ODD.nearest(start, candidates) == nearest


@pytest.mark.parametrize(
    ("topology", "home", "node"),
    [
        (machine("dgx-a100"), 3, 3),  # a node of unknown memory is taken to have some
        (machine("threadripper-2990wx"), 2, 2),
        (machine("threadripper-2990wx"), 1, 0),  # without memory the nearest, then lowest
        (machine("gh200x4"), 1, 1),  # GPU memory is no nearer than a node's own
        (machine("stray-cpus"), None, None),  # the CPUs of no node have no memory node
        (made({0: "0", 1: "1"}, memoryless=[0, 1]), 1, 1),
    ],
)
def test_a_home_node_s_memory(topology: Topology, home: int | None, node: int | None) -> None:
    assert topology.memory_node(home) == node


def test_devices_of_unknown_nodes_are_far_from_each_other() -> None:
    """All other words are held by what `nvidia-smi topo -m` said of real machines."""
    gpu = Gpu(0, "nvidia", "GPU", None, pci_path=("h0", "GPU"))
    for node in (None, 0):
        nic = Nic("NIC", node, "ethernet", pci_path=("h1", "NIC"))
        assert machine("laptop").nearness(gpu, nic) == "SYS"
