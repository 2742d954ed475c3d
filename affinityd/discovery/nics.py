"""Network and InfiniBand adapters, their interfaces, and the ports of their RDMA devices.

Sources: kernel Documentation/ABI/stable/sysfs-class-infiniband (ports/N/state, rate, link_layer),
ABI/testing/sysfs-class-net (master), ABI/testing/sysfs-bus-pci (physfn), networking/bonding.rst.
HPE's Slingshot driver has port/link and port/speed below the PCI device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from affinityd.discovery.pci import NETWORK, NumaLocator, PciDevice
from affinityd.discovery.tree import Tree
from affinityd.text import printable
from affinityd.topology.model import SLINGSHOT, Nic, RdmaPort

#: PCI class, its first two bytes → the kind of adapter.
_KINDS = {0x0200: "ethernet", 0x0207: "infiniband"}

#: A hardware address in a name, as in enx001122334455.
_ADDRESS_DIGITS = 12

#: Of an adapter's folder: its kinds of interfaces, the link of a virtual function, virtioN.
KINDS = ("infiniband", "cxi", "net")
PHYSICAL, VIRTUAL = "physfn", "virtio"

RDMA = "sys/class/infiniband"
CXI = "sys/class/cxi"
BONDS = "sys/class/net"

ACTIVE = "4:"  #: begins a port's state, enum ib_port_state
UP = "up"  #: the state of a Slingshot port's link
UNKNOWN = "Unknown"  #: EFA's link layer


def read_nics(tree: Tree, devices: Sequence[PciDevice], locator: NumaLocator) -> Iterator[Nic]:
    """Yield the adapters among the devices, in the devices' order."""
    for device in devices:
        if device.base_class == NETWORK:
            names = tree.list(device.folder, _is_of_nic)
            interfaces = tuple(_interfaces(tree, device.folder, names))
            physical = _target(tree, f"{device.folder}/{PHYSICAL}") if PHYSICAL in names else None
            bond = _bond(tree, interfaces)
            node, source = locator.locate(device)
            yield Nic(
                pci_bus_id=device.address,
                numa_node=node,
                kind=_KINDS.get(device.class_code or 0, "network"),
                names=tuple(printable(name) for _, name in interfaces),
                pci_path=device.path,
                ports=tuple(_ports(tree, device.folder, interfaces, bond)),
                physical=physical,
                bond=bond,
                numa_source=source,
            )


def port_states(tree: Tree) -> tuple[tuple[str, bool], ...]:
    """Return a value that changes when an RDMA device comes or goes, or its port up or down.

    A port that comes up passes other states, in which it is down.
    """
    folders = (
        f"{RDMA}/{device}/ports/{number}/state"
        for device in tree.list(RDMA, is_anonymous)
        for number in tree.list(f"{RDMA}/{device}/ports", _is_number)
    )
    slingshot = (f"{CXI}/{name}/device/port/link" for name in tree.list(CXI))
    return tuple((path, _is_up(tree.read(path))) for path in (*folders, *slingshot))


def _is_up(state: str | None) -> bool:
    return state is not None and state.startswith((ACTIVE, UP))


def is_of_port(path: str) -> bool:
    """Whether a file is of an RDMA device's port."""
    return "/ports/" in path or "/port/" in path


def _is_of_nic(name: str) -> bool:
    return name in KINDS or name == PHYSICAL or name.startswith(VIRTUAL)


def _interfaces(tree: Tree, folder: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield its interfaces: the folder of their kind, and the name.

    A virtual machine's adapter has them a device further down.
    """
    for kind in (kind for kind in KINDS if kind in names):
        for name in tree.list(f"{folder}/{kind}", is_anonymous):
            yield f"{folder}/{kind}", name
    for below in (f"{folder}/{name}" for name in names if name.startswith(VIRTUAL)):
        yield from _interfaces(tree, below, tree.list(below, KINDS.__contains__))


def _ports(
    tree: Tree, folder: str, interfaces: Sequence[tuple[str, str]], bond: str | None
) -> Iterator[RdmaPort]:
    nets = [printable(name) for place, name in interfaces if place.endswith("/net")]
    for place, name in interfaces:
        if place == f"{folder}/infiniband":
            for number in tree.list(f"{place}/{name}/ports", _is_number):
                port = f"{place}/{name}/ports/{number}"
                netdev = _netdev(tree, port, nets, bond)
                yield _port(tree, port, name, int(number), netdev)
        elif place == f"{folder}/cxi":
            yield RdmaPort(
                device=printable(name),
                number=1,
                is_active=_is_up(tree.read(f"{folder}/port/link")),
                gbps=_first_number((tree.read(f"{folder}/port/speed") or "").partition("_")[2]),
                link_layer=SLINGSHOT,
                netdev=nets[0] if len(nets) == 1 else None,
            )


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _netdev(tree: Tree, port: str, nets: Sequence[str], bond: str | None) -> str | None:
    """Return the interface of a port's first GID, else the only one of the adapter.

    No other name is read: it could have a hardware address.
    """
    names = nets if bond is None else (*nets, bond)
    netdev = tree.read(f"{port}/gid_attrs/ndevs/0", *names) if len(names) > 1 else None
    return printable(netdev) if netdev else nets[0] if len(nets) == 1 else None


def _port(tree: Tree, folder: str, device: str, number: int, netdev: str | None) -> RdmaPort:
    layer = tree.read(f"{folder}/link_layer")
    return RdmaPort(
        device=printable(device),
        number=number,
        is_active=_is_up(tree.read(f"{folder}/state")),
        gbps=_first_number(tree.read(f"{folder}/rate") or ""),
        link_layer=printable(layer) if layer and layer != UNKNOWN else None,
        netdev=netdev,
    )


def _first_number(text: str) -> int | None:
    """Return the whole number that a text begins with: of `400 Gb/sec (4X NDR)`, `200G`."""
    digits = text[: len(text) - len(text.lstrip("0123456789"))]
    return int(digits) if digits and len(digits) < 10 else None  # noqa: PLR2004 - no rate has ten


def _target(tree: Tree, path: str) -> str | None:
    """Return the name of what a symbolic link leads to; None where there is none."""
    link = tree.link(path)
    return None if link is None else printable(link.rstrip("/").rpartition("/")[2])


def _bond(tree: Tree, interfaces: Sequence[tuple[str, str]]) -> str | None:
    """Return the bond of an adapter's interfaces; another master, such as a bridge, is none."""
    for place, name in interfaces:
        master = _target(tree, f"{place}/{name}/master") if place.endswith("/net") else None
        if master and tree.read(f"{BONDS}/{master}/bonding/mode") is not None:
            return master
    return None


def is_anonymous(name: str) -> bool:
    """Whether an interface's name has no hardware address: a snapshot must have none."""
    tail = name[-_ADDRESS_DIGITS:]
    return len(tail) < _ADDRESS_DIGITS or any(digit not in "0123456789abcdef" for digit in tail)
