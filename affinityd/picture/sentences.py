"""A machine in sentences, for readers that do not see its picture."""

from __future__ import annotations

from collections.abc import Iterator

from affinityd.cpuset import format_list, several
from affinityd.text import count, node_name
from affinityd.topology.model import Topology
from affinityd.topology.words import gpu_word, home, memory, totals


def summary(topology: Topology) -> str:
    """Return the machine's name, and how many of what it has."""
    return f"{topology.name}: {', '.join(totals(topology))}"


def sentences(topology: Topology) -> Iterator[str]:
    """Yield a sentence for each NUMA node, and for what has none."""
    for node in topology.nodes:
        cores = topology.node_cores[node.number]
        cpus = (
            f"{count(len(cores), 'core')}, CPUs {format_list(topology.cpus_of_node(node.number))}"
        )
        parts = (memory(node), cpus if cores else "no CPUs", *_devices(topology, node.number))
        name = node_name(node.number)
        yield f"{name[0].upper()}{name[1:]}: {'; '.join(filter(None, parts))}."
    if None not in topology.node_of and (devices := list(_devices(topology, None))):
        yield f"Node unknown: {'; '.join(devices)}."
    if offline := topology.possible - topology.online:
        yield f"Not online: {several('CPU', offline)}."


def _devices(topology: Topology, number: int | None) -> Iterator[str]:
    for gpu in topology.gpus:
        if home(topology, gpu) == number:
            yield f"{gpu_word(topology, gpu)} {gpu.index}"
    for nic in topology.nics:
        if home(topology, nic) == number:
            yield f"NIC {nic.names[0] if nic.names else nic.pci_bus_id}"
