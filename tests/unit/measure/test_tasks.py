"""Which node measures what."""

from __future__ import annotations

from affinityd.measure.document import OF_GPUS, OF_MEMORY
from affinityd.measure.run import is_virtual, measured_gpu, tasks
from tests.support.machines.by_hand import made

#: Node 1 has no memory, node 2 no CPUs, and the second GPU is in an unknown place.
ODD = made({0: "0-1", 1: "2-3", 2: ""}, gpus=[1, None], memoryless=[1])


def test_each_node_with_cpus_measures_each_memory_and_each_gpu() -> None:
    found = tasks(ODD, ODD.gpus)
    assert [(it.node, it.cpus, it.home) for it in found] == [
        (0, frozenset({0, 1}), 0),
        (1, frozenset({2, 3}), 0),
    ]
    for task in found:
        assert [(it.node, it.cpus) for it in task.memory] == [
            (0, frozenset({0, 1})),
            (2, frozenset()),
        ]
        assert [(it.quantity, it.target) for it in task.blanks] == [
            *((quantity, node) for node in (0, 2) for quantity in OF_MEMORY),
            *((quantity, gpu.pci_bus_id) for gpu in ODD.gpus for quantity in OF_GPUS),
        ]
        assert {it.numa_node for it in task.blanks} == {task.node}


def test_a_gpu_names_its_near_nodes_if_they_are_known() -> None:
    assert [measured_gpu(ODD, gpu).near for gpu in ODD.gpus] == [[1], []]


def test_a_virtual_machine_is_known_by_the_flag_of_its_cpus() -> None:
    assert is_virtual("processor\t: 0\nflags\t\t: fpu hypervisor lahf_lm\n")
    assert not is_virtual("processor\t: 0\nflags\t\t: fpu lahf_lm\n")
    assert not is_virtual("processor\t: 0\nFeatures\t: fp asimd\n")
