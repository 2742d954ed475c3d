"""The GPUs and NICs of a NUMA node, as rows of the tree."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from affinityd.cli.render.tree import CYAN, GREEN, Branch, Kind
from affinityd.cpuset import format_list
from affinityd.topology.model import PHB, PIX, PXB, Nic, Topology
from affinityd.topology.words import gpu_model, gpu_word, home, nic_kind

DEVICE = Kind("device")

#: The nearness that is worth a word, nearest first: beneath one switch, or one host bridge.
NEAR = (PIX, PXB, PHB)


def draw_devices(topology: Topology, number: int | None) -> Iterator[Branch]:
    """Yield the devices of a node; number None: the devices without a known node."""
    for gpu in topology.gpus:
        if home(topology, gpu) == number:
            name = f"{gpu_word(topology, gpu)} {gpu.index}"
            mig = f"{len(gpu.mig)} x MIG" if gpu.mig else ""
            yield Branch(DEVICE, (name, gpu.pci_bus_id, gpu_model(topology, gpu), mig), GREEN)
    for nic in topology.nics:
        if home(topology, nic) == number:
            kind = ", ".join(nic_kind(nic))
            interfaces = f"{', '.join(nic.names)} ({kind})" if nic.names else kind
            near = ", ".join(_near(topology, nic))
            yield Branch(DEVICE, ("NIC", nic.pci_bus_id, interfaces, near), CYAN)


def _near(topology: Topology, nic: Nic) -> Iterator[str]:
    """Yield the GPUs that are near to a NIC, nearest first."""
    for nearness in NEAR:
        near = [gpu for gpu in topology.gpus if topology.nearness(gpu, nic) == nearness]
        names = [
            f"{word} {format_list(gpu.index for gpu in gpus)}"
            for word, gpus in groupby(near, lambda gpu: gpu_word(topology, gpu))
        ]
        if names:
            yield f"{nearness} to {', '.join(names)}"
