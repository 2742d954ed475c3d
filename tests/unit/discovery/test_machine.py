"""A machine that is written as a kernel would show it is read back the same."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings

from affinityd.discovery import discover, open_tree, snapshot_nvml
from affinityd.discovery.snapshot import write_snapshot
from affinityd.topology.model import Gpu, Topology
from tests.support.machines.facts import ALL_NAMES, machine
from tests.support.machines.strategies import machines
from tests.support.machines.sysfs_tree import nvml_report, write_tree


@pytest.mark.parametrize("name", ALL_NAMES)
def test_a_named_machine_and_its_snapshot_are_read_back(name: str, tmp_path: Path) -> None:
    written, report = machine(name), nvml_report(machine(name))
    tree = open_tree(str(write_tree(written, tmp_path / "tree")))
    topology = discover(tree, None)
    assert plain(topology) == plain(written)
    assert (topology.online, topology.possible) == (written.online, written.possible)
    assert nearnesses(topology) == nearnesses(written)
    assert [nic.ports for nic in topology.nics] == [nic.ports for nic in written.nics]
    write_snapshot(tree, report, tmp_path / "node7.tar")
    replay = open_tree(str(tmp_path / "node7.tar"))
    assert snapshot_nvml(replay) == report
    assert discover(replay, report) == replace(discover(tree, report), name="node7")


def plain(topology: Topology) -> tuple[object, ...]:
    """A machine without its GPUs' paths, whose bridges have names of their own in a tree."""
    gpus = (
        replace(gpu, pci_path=(), numa_source=None, model=gpu.model if tells_model(gpu) else None)
        for gpu in topology.gpus
    )
    return topology.cores, topology.nodes, *gpus


def tells_model(gpu: Gpu) -> bool:
    return gpu.vendor in {"nvidia", "amd"}


def nearnesses(topology: Topology) -> list[tuple[str, str, str]]:
    pairs = product(topology.gpus, topology.nics)
    return [(gpu.pci_bus_id, nic.pci_bus_id, topology.nearness(gpu, nic)) for gpu, nic in pairs]


def firm(topology: Topology) -> Topology:
    """Return a machine whose firmware tells the distance of every two nodes, as in a tree."""
    numbers = [node.number for node in topology.nodes if node.number is not None]
    nodes = (
        replace(node, distances={end: node.distances.get(end, 255) for end in numbers})
        for node in topology.nodes
        if node.number is not None
    )
    stray = (node for node in topology.nodes if node.number is None)
    return replace(topology, nodes=(*nodes, *stray))


@settings(max_examples=60, deadline=None)
@given(written=machines().map(firm))
def test_any_machine_is_read_back(
    written: Topology, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = write_tree(written, tmp_path_factory.mktemp("machine"))
    topology = discover(open_tree(str(root)), nvml_report(written))
    assert plain(topology) == plain(written)


def test_a_snapshot_of_this_machine_replays_it(tmp_path: Path) -> None:
    here = open_tree("/")
    topology = discover(here, None)
    assert len(topology.online) == os.cpu_count()
    write_snapshot(here, None, tmp_path / "here.tar.xz")
    replay = open_tree(str(tmp_path / "here.tar.xz"))
    assert replace(discover(replay, None), name=here.name) == topology
    assert snapshot_nvml(replay) is None


def test_control_characters_in_names_become_question_marks(tmp_path: Path) -> None:
    mi250x = machine("mi250x")
    tree = write_tree(mi250x, tmp_path / "na\udcffme\x1b")
    device = tree / f"sys/bus/pci/devices/{mi250x.gpus[1].pci_bus_id}"
    (device / "product_name").write_text("MI\x1b]0;owned\x07\n250")
    read = discover(open_tree(str(tree)), None)
    assert read.name == "na?me?"
    assert read.gpus[1].model == "MI?]0;owned??250"
