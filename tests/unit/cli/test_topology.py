"""Drawings of nodes: golden files, and cases that the golden files do not have."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.cli.commands.topology import describe
from affinityd.machines import NAMES
from affinityd.topology.model import Core, NumaNode, Topology
from tests.support.machines.facts import machine
from tests.support.paths import DATA

HERE = DATA / "golden"

DRAWN = (
    *(*NAMES, "cloud-vm", "lassen", "power8", "power9", "stray-cpus", "threadripper-2990wx"),
    *("two-vendors", "uv2000", "vm-sockets"),
)


def path(name: str) -> Path:
    return HERE / f"topology-{name}.txt"


def drawing(name: str) -> str:
    return "".join(f"{line}\n" for line in describe(machine(name)))


@pytest.mark.parametrize("name", DRAWN)
def test_the_drawing_of_a_machine_equals_its_golden_file(name: str) -> None:
    """`python -m tests.unit.cli.test_topology` writes the golden files again."""
    assert drawing(name) == path(name).read_text(encoding="utf-8")


def odd_machine(packages: Sequence[int | None], nodes: Sequence[int | None]) -> Topology:
    """A machine of one-CPU cores; core i is on the package and the node at place i."""
    cores = tuple(
        Core((cpu,), node, package, None, llc=cpu)
        for cpu, (package, node) in enumerate(zip(packages, nodes, strict=True))
    )
    numbers = sorted({node for node in nodes if node is not None})
    return Topology("odd", cores, tuple(NumaNode(number) for number in numbers))


SPANNING = """\
  packages 0-1, NUMA node 0: 4 cores, CPUs 0-3
    LLC    one for each core
  package 2: 2 cores, CPUs 4-5
    NUMA node 1: 1 core, CPU 4
    NUMA node 2: 1 core, CPU 5"""
UNKNOWN = """\
  NUMA node 0: 1 core, CPU 0
  NUMA node 1: 1 core, CPU 1"""
NO_DISTANCE = """\
distance  0  1
node 0    ?  ?
node 1    ?  ?"""

TWO_VENDORS = machine("two-vendors")
POWER9 = machine("power9")
ON_A_BARE_NODE = """\
  NUMA nodes 250-251,253-255: 15 GiB each, no CPUs
  NUMA node 252: 15 GiB, no CPUs
    GPU 0  0004:05:00.0  nvidia Tesla V100-SXM2-16GB"""
LOST = """\
  NUMA node unknown:
    GPU 0  0000:01:00.0  NVIDIA GeForce RTX 4060 Laptop GPU"""
NOTICES = ("NVML was not asked", "KFD is silent")
NOTES = """\

note: NVML was not asked
note: KFD is silent"""


def with_gpu(topology: Topology, **changed: object) -> Topology:
    return replace(topology, gpus=(replace(topology.gpus[0], **changed),), nics=())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("topology", "first", "drawn"),
    [
        pytest.param(odd_machine((0, 0, 1, 1, 2, 2), (0, 0, 0, 0, 1, 2)), 1, SPANNING, id="spans"),
        pytest.param(odd_machine((None, None), (0, 1)), 1, UNKNOWN, id="unknown packages"),
        pytest.param(odd_machine((0, 1), (0, 1)), -3, NO_DISTANCE, id="unknown distances"),
        pytest.param(with_gpu(POWER9, numa_node=252), 5, ON_A_BARE_NODE, id="no CPUs there"),
        pytest.param(with_gpu(TWO_VENDORS, numa_node=7), 2, LOST, id="no such node"),
        pytest.param(replace(POWER9, notices=NOTICES), -3, NOTES, id="notices come last"),
    ],
)
def test_an_odd_machine_is_drawn(topology: Topology, first: int, drawn: str) -> None:
    assert "\n".join([*describe(topology)][first:]).startswith(drawn)


if __name__ == "__main__":
    for drawn in DRAWN:
        path(drawn).write_text(drawing(drawn), encoding="utf-8")
