"""A real kernel on a machine with many NUMA nodes: which of its figures are measured."""

import json

import pytest

from affinityd.measure.document import OF_GPUS
from tests.e2e.vm.guest_measure import MEASURED, NODES
from tests.e2e.vm.hardware import BARE_NODE, GPU_NODES, MEMORY_NODE
from tests.e2e.vm.hardware import NODES as WITH_CPUS
from tests.e2e.vm.inside import Document

WITH_MEMORY = {*range(WITH_CPUS), MEMORY_NODE} - {BARE_NODE}
#: Figures, by node of the CPUs and target: whether they were measured, or why not.
Figures = dict[tuple[int, object], set[str | None]]


@pytest.fixture(scope="module")
def document(seen: Document) -> Document:
    return dict(json.loads(seen["stdout"]))


@pytest.fixture(scope="module")
def figures(document: Document) -> Figures:
    reasons: Figures = {}
    for figure in document["figures"]:
        assert (figure["value"] is None) == (figure["why"] is not None)
        target = figure["memory_node"] if figure["gpu"] is None else figure["gpu"]
        reasons.setdefault((figure["numa_node"], target), set()).add(figure["why"])
    return reasons


def test_memory_is_measured_from_each_node_of_the_cpuset(figures: Figures) -> None:
    """The root's files fill one node. Where a figure has a value, its memory was on the node."""
    of_memory = {pair: why for pair, why in figures.items() if isinstance(pair[1], int)}
    assert of_memory.keys() == {(node, of) for node in range(WITH_CPUS) for of in WITH_MEMORY}
    inside = {pair: why for pair, why in of_memory.items() if pair[0] in NODES}
    full = {of for (_, of), why in inside.items() if why != {None}}
    assert len(full) <= 1
    for (_, of), (why,) in inside.items():
        assert (why is None) == (of not in full)
        assert why is None or f"came to node {of}: it has too little free memory" in why


def test_a_gpu_is_measured_from_each_node(document: Document, figures: Figures) -> None:
    gpu = document["gpus"][MEASURED]
    assert gpu["near"] == [GPU_NODES[MEASURED]]
    reasons = {node: figures[node, gpu["pci_bus_id"]] for node in NODES}
    measured = [node for node, why in reasons.items() if why == {None}]
    assert {*measured} >= {GPU_NODES[MEASURED], BARE_NODE}
    figures_of_a_node = len(WITH_MEMORY) + len(GPU_NODES) * len(OF_GPUS)
    assert len(document["figures"]) == WITH_CPUS * figures_of_a_node
    assert "host_to_device_pinned" in {each["quantity"] for each in document["comparisons"]}
