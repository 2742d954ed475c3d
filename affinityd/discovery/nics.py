"""Network and InfiniBand adapters, and the names of their interfaces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from affinityd.discovery.numa import NumaLocator
from affinityd.discovery.pci import NETWORK, PciDevice
from affinityd.discovery.tree import Tree
from affinityd.text import printable
from affinityd.topology.model import Nic

#: PCI class, its first two bytes → the kind of adapter.
_KINDS = {0x0200: "ethernet", 0x0207: "infiniband"}

#: A hardware address in a name, as in enx001122334455.
_ADDRESS_DIGITS = 12


def read_nics(tree: Tree, devices: Sequence[PciDevice], locator: NumaLocator) -> Iterator[Nic]:
    """Yield the adapters among the devices, in the devices' order."""
    for device in devices:
        if device.base_class == NETWORK:
            yield Nic(
                pci_bus_id=device.address,
                numa_node=locator.locate(device)[0],
                kind=_KINDS.get(device.class_code or 0, "network"),
                names=tuple(_names(tree, device.folder)),
                pci_path=device.path,
            )


def _names(tree: Tree, folder: str) -> Iterator[str]:
    """Yield its interfaces' names; a virtual machine's adapter has them a device further down."""
    below = tree.list(folder, lambda name: name.startswith("virtio"))
    for place in (folder, *(f"{folder}/{name}" for name in below)):
        for kind in ("infiniband", "net"):
            yield from map(printable, tree.list(f"{place}/{kind}", is_anonymous))


def is_anonymous(name: str) -> bool:
    """Whether an interface's name has no hardware address: a snapshot must have none."""
    tail = name[-_ADDRESS_DIGITS:]
    return len(tail) < _ADDRESS_DIGITS or any(digit not in "0123456789abcdef" for digit in tail)
