"""A real kernel on a machine with many NUMA nodes: affinityd in it."""

import re
from typing import Any

import pytest

from tests.e2e.vm.guest_discovery import MOMENTS
from tests.e2e.vm.hardware import BARE_NODE, CPUS, GPU_NODES, NODES, cpus_of, distance
from tests.e2e.vm.inside import Document


def of_ranks(planned: Document, *keys: str) -> list[Any]:
    """Return what a plan says under some keys, rank by rank."""
    return [tuple(rank[key] for key in keys) for rank in planned["ranks"]]


# The machine. That cores, packages and caches are hwloc's is held by tests/e2e/lstopo.


def test_the_machine_is_the_one_that_was_built(seen: Document) -> None:
    """One of its CPUs is offline since it booted."""
    topology = seen["machine"]
    assert (topology["online"], topology["possible"]) == (f"0-{CPUS - 2}", f"0-{CPUS - 1}")
    gpus = [(gpu["vendor"], gpu["numa_node"]) for gpu in topology["gpus"]]
    assert gpus == [("amd", node) for node in GPU_NODES]


def test_memory_and_distances_are_numactls_and_the_firmwares(seen: Document) -> None:
    nodes, numactl = seen["machine"]["nodes"], seen["numactl"]
    sizes = {str(node["number"]): str(node["memory_bytes"] >> 20) for node in nodes}
    assert sizes == dict(re.findall(r"^node (\d+) size: (\d+) MB$", numactl, re.MULTILINE))
    assert [number for number, size in sizes.items() if size == "0"] == [str(BARE_NODE)]
    rows = {node["number"]: list(node["distances"].values()) for node in nodes}
    table = re.findall(r"^ +(\d+):(.*)$", numactl.partition("node distances:")[2], re.MULTILINE)
    every = range(NODES + 1)
    assert rows == {int(node): [*map(int, values.split())] for node, values in table}
    assert rows == {one: [distance(one, other) for other in every] for one in every}


def test_the_network_adapter_beside_a_gpu_is_nearest_to_it(seen: Document) -> None:
    topology = seen["machine"]
    nodes = {gpu["pci_bus_id"]: gpu["numa_node"] for gpu in topology["gpus"]}
    assert len(topology["nics"]) == len(set(GPU_NODES))
    for nic in topology["nics"]:
        assert len(nic["names"]) == 1
        near = {gpu for gpu, nearness in nic["nearness"].items() if nearness == "PHB"}
        assert near == {gpu for gpu, node in nodes.items() if node == nic["numa_node"]}


# What the daemon answers.


def test_each_gpu_has_a_home_node_and_near_memory(seen: Document) -> None:
    homes = of_ranks(seen["every"], "home_node", "cpulist", "locality")
    assert homes == [(node, cpus_of(node), "local") for node in GPU_NODES]
    assert seen["every"]["warnings"] == []
    memory = dict(of_ranks(seen["every"], "home_node", "memory_node"))
    assert distance(BARE_NODE, memory.pop(BARE_NODE)) == 12
    assert all(node == own for own, node in memory.items())


# CPUs that come and go. The daemon asks for no event: it looks before each answer.


@pytest.mark.parametrize(("generation", "moment"), [*enumerate(MOMENTS, start=1)])
def test_the_next_answer_has_the_online_cpus(seen: Document, generation: int, moment: str) -> None:
    """Every change is one generation."""
    *_, first_two, fifth, online = MOMENTS[moment]
    then = seen["hotplug"][moment]
    plans, file = then["answers"], then["node file"]
    assert [[it for (it,) in of_ranks(plan, "cpulist")] for plan in plans] == [first_two, fifth]
    assert plans[0]["allowed"]["cpulist"] == file["topology"]["online"] == online
    assert {it["generation"] for it in (*plans, file)} == {generation}


def test_gpus_of_a_node_without_online_cpus_have_the_nearest(seen: Document) -> None:
    planned, _ = seen["hotplug"]["a node taken offline"]["answers"]
    ranks = of_ranks(planned, "numa_node", "home_node", "locality")
    assert ranks == [(3, 0, "remote"), (3, 1, "remote")]
    assert [it["code"] for it in planned["warnings"]] == ["remote_home", "remote_home"]
