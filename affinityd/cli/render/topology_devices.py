"""The GPUs and NICs of a NUMA node, as rows of the tree."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from affinityd.cli.render.tree import CYAN, GREEN, Branch, Kind
from affinityd.cpuset import format_list
from affinityd.topology.model import PHB, PIX, PXB, Gpu, Nic, Topology

DEVICE = Kind("device")

#: The nearness that is worth a word, nearest first: beneath one switch, or one host bridge.
NEAR = (PIX, PXB, PHB)


def draw_devices(topology: Topology, number: int | None) -> Iterator[Branch]:
    """Yield the devices of a node; number None: the devices without a known node."""
    for gpu in topology.gpus:
        if _home(topology, gpu) == number:
            name = f"{_gpu_word(topology, gpu)} {gpu.index}"
            mig = f"{len(gpu.mig)} x MIG" if gpu.mig else ""
            yield Branch(DEVICE, (name, gpu.pci_bus_id, _model(topology, gpu), mig), GREEN)
    for nic in topology.nics:
        if _home(topology, nic) == number:
            kind = ", ".join(_kind(nic))
            interfaces = f"{', '.join(nic.names)} ({kind})" if nic.names else kind
            near = ", ".join(_near(topology, nic))
            yield Branch(DEVICE, ("NIC", nic.pci_bus_id, interfaces, near), CYAN)


def _home(topology: Topology, device: Gpu | Nic) -> int | None:
    return device.numa_node if device.numa_node in topology.node_of else None


def _gpu_word(topology: Topology, gpu: Gpu) -> str:
    """Return the word before an index: each vendor counts its own GPUs."""
    return "GPU" if _is_only_vendor(topology) else f"{gpu.vendor} GPU"


def _is_only_vendor(topology: Topology) -> bool:
    return len({gpu.vendor for gpu in topology.gpus}) == 1


def _model(topology: Topology, gpu: Gpu) -> str:
    """Return the model, and the vendor if neither the model nor the name has it."""
    model = gpu.model or gpu.pci_id or ""
    is_said = gpu.vendor in model.lower() or not _is_only_vendor(topology)
    return model if is_said else f"{gpu.vendor} {model}".rstrip()


def _kind(nic: Nic) -> Iterator[str]:
    """Yield the kind of an adapter, its speed, and why plans do not name it."""
    yield nic.kind
    yield from dict.fromkeys(f"{it.gbps} Gb/s" for it in nic.ports if it.is_active and it.gbps)
    if nic.ports and not any(port.is_active for port in nic.ports):
        yield "down"
    if nic.physical is not None:
        yield f"virtual function of {nic.physical}"
    if nic.bond is not None:
        yield f"in {nic.bond}"


def _near(topology: Topology, nic: Nic) -> Iterator[str]:
    """Yield the GPUs that are near to a NIC, nearest first."""
    for nearness in NEAR:
        near = [gpu for gpu in topology.gpus if topology.nearness(gpu, nic) == nearness]
        names = [
            f"{word} {format_list(gpu.index for gpu in gpus)}"
            for word, gpus in groupby(near, lambda gpu: _gpu_word(topology, gpu))
        ]
        if names:
            yield f"{nearness} to {', '.join(names)}"
