"""The drawing of a node: goldens, and what they cannot show."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from affinityd.cli.render.topology import draw
from affinityd.machines import build
from affinityd.topology.model import Core, Gpu, MigInstance, Nic, NumaNode, Topology
from tests.support.drawings import DRAWN, drawing, path
from tests.support.machines.facts import ALL_NAMES, machine

COLOUR = re.compile(r"\x1b\[\d+m")


def lines(topology: Topology) -> list[str]:
    return list(draw(topology, colour=False))


@pytest.mark.parametrize("name", DRAWN)
def test_a_machine_is_drawn_as_it_was_reviewed(name: str) -> None:
    """After a change that is meant: python -m tests.support.drawings, and review the difference."""
    assert drawing(name) == path(name).read_text(encoding="utf-8")


def test_every_golden_is_compared() -> None:
    assert set(path("x").parent.glob("topology-*.txt")) == {path(name) for name in DRAWN}


@pytest.mark.parametrize("name", ALL_NAMES)
def test_colour_adds_nothing_but_colour(name: str) -> None:
    coloured = list(draw(machine(name), colour=True))
    assert coloured != lines(machine(name))
    assert [COLOUR.sub("", line) for line in coloured] == lines(machine(name))


@pytest.mark.parametrize("name", ALL_NAMES)
def test_below_the_headline_no_line_is_wider_than_100_columns(name: str) -> None:
    assert max(map(len, lines(machine(name))[1:])) <= 100


@pytest.mark.parametrize("name", ALL_NAMES)
def test_every_device_is_drawn_once(name: str) -> None:
    text = "\n".join(lines(machine(name)))
    devices: list[Gpu | Nic] = [*machine(name).gpus, *machine(name).nics]
    for device in devices:
        assert text.count(device.pci_bus_id) == 1


@pytest.mark.parametrize("name", ALL_NAMES)
def test_every_node_with_cpus_is_drawn_once(name: str) -> None:
    text = "\n".join(lines(machine(name)))
    for number in machine(name).nodes_with_cpus:
        label = "no NUMA node" if number is None else f"NUMA node {number} "
        assert text.count(label) == 1


def odd_machine(packages: list[int | None], nodes: list[int | None]) -> Topology:
    """A machine of one-CPU cores, each on the package and the node at its place."""
    cores = tuple(
        Core((cpu,), node, package, None, llc=cpu)
        for cpu, (package, node) in enumerate(zip(packages, nodes, strict=True))
    )
    numbers = sorted({node for node in nodes if node is not None})
    return Topology("odd", cores, tuple(NumaNode(number) for number in numbers))


def test_a_node_that_spans_packages_stands_for_itself_beside_packages_that_are_whole() -> None:
    assert lines(odd_machine([0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 2]))[1:7] == [
        "├─ package 2                  2 cores  4-5",
        "│  ├─ NUMA node 1              1 core  4",
        "│  └─ NUMA node 2              1 core  5",
        "└─ packages 0-1, NUMA node 0  4 cores  0-3",
        "   ├─ packages  2 x 2 cores  0-1  2-3",
        "   └─ LLC       one for each core",
    ]


def test_a_package_that_has_a_part_of_such_a_node_is_named_at_its_other_nodes() -> None:
    assert lines(odd_machine([0, 0, 1], [0, 1, 1]))[1:5] == [
        "├─ package 0, NUMA node 0      1 core  0",
        "└─ packages 0-1, NUMA node 1  2 cores  1-2",
        "   ├─ packages  one for each core",
        "   └─ LLC       one for each core",
    ]


def test_where_packages_are_not_known_nodes_are_drawn_alone() -> None:
    assert lines(odd_machine([None, None], [0, 1]))[1:3] == [
        "├─ NUMA node 0  1 core  0",
        "└─ NUMA node 1  1 core  1",
    ]


def test_a_distance_that_the_machine_does_not_tell_is_a_question_mark() -> None:
    assert lines(odd_machine([0, 1], [0, 1]))[-3:] == [
        "distance  0  1",
        "node 0    ?  ?",
        "node 1    ?  ?",
    ]


def test_a_machine_with_cpus_in_one_node_has_no_table_of_distances() -> None:
    assert not any(line.startswith("distance") for line in lines(machine("laptop")))


def test_a_gpu_on_a_node_without_cpus_is_drawn_there() -> None:
    topology = machine("power9")
    moved = replace(topology, gpus=(replace(topology.gpus[0], numa_node=252),))
    assert lines(moved)[5:8] == [
        "├─ NUMA nodes 250-251,253-255  15 GiB each  no CPUs",
        "└─ NUMA node 252               15 GiB       no CPUs",
        "   └─ GPU 0  0004:05:00.0  nvidia Tesla V100-SXM2-16GB",
    ]


def test_a_gpu_on_a_node_that_is_not_there_is_of_unknown_node() -> None:
    topology = machine("two-vendors")
    lost = replace(topology, gpus=(replace(topology.gpus[0], numa_node=7),), nics=())
    assert lines(lost)[2:4] == [
        "└─ NUMA node unknown",
        "   └─ GPU 0  0000:01:00.0  NVIDIA GeForce RTX 4060 Laptop GPU",
    ]


def test_mig_instances_are_counted() -> None:
    gpu = replace(machine("cloud-vm").gpus[0], mig=(MigInstance("MIG-1"), MigInstance("MIG-2")))
    text = "\n".join(lines(replace(machine("cloud-vm"), gpus=(gpu,))))
    assert "0000:06:00.0  nvidia Tesla P100-PCIE-16GB  2 x MIG\n" in text


def test_a_gpu_of_which_nothing_is_known_has_its_vendors_name() -> None:
    topology = replace(machine("laptop"), gpus=(Gpu(0, "1de0", "0000:01:00.0", 0),))
    assert "   └─ GPU 0  0000:01:00.0  1de0" in [line.replace("│", " ") for line in lines(topology)]


def test_notices_come_last_beneath_what_is_offline() -> None:
    topology = replace(machine("power9"), notices=("NVML was not asked", "KFD is silent"))
    assert lines(topology)[-4:] == [
        "",
        "note: not online: CPUs 16-87,104-175",
        "note: NVML was not asked",
        "note: KFD is silent",
    ]


def test_caches_of_different_size_have_a_line_for_each_size() -> None:
    facts = {
        "name": "ragged",
        "cores": 5,
        "threads": 1,
        "packages": {"0": "0-4"},
        "nodes": [{"nodes": "0", "cpus": "0-4", "memory_mib": 3 * 1024}],
        "cores_per_llc": 2,
    }
    assert lines(build(facts))[1:] == [
        "└─ package 0, NUMA node 0  3.0 GiB  5 cores  0-4",
        "   ├─ LLC  2 x 2 cores  0-1  2-3",
        "   └─ LLC  1 x 1 core   4",
    ]


def test_a_machine_of_which_some_threads_are_offline_says_so() -> None:
    topology = machine("laptop")
    first = replace(topology.cores[0], cpus=(0,))
    assert ", SMT1-2, " in lines(replace(topology, cores=(first, *topology.cores[1:])))[0]
