"""PCI devices, their NUMA nodes, and network adapters with the ports of their RDMA devices.

Sources: kernel `Documentation/ABI/testing/sysfs-bus-pci` (class, numa_node, local_cpulist,
local_cpus, physfn), `stable/sysfs-class-infiniband` (ports/N/state, rate, link_layer),
`testing/sysfs-class-net` (master), networking/bonding.rst; classes from the PCI Code and ID
Assignment Specification. HPE's Slingshot driver has port/link and port/speed below the PCI device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from affinityd.cpuset import CpuSet
from affinityd.discovery.tree import Tree, read_cpus, read_number
from affinityd.text import printable
from affinityd.topology.model import SLINGSHOT, Gpu, Nic, RdmaPort

DEVICES = "sys/bus/pci/devices"

#: Base classes: the first of a class's three bytes.
NETWORK = 0x02
DISPLAY = 0x03
ACCELERATOR = 0x12
HEX_DIGITS = frozenset("0123456789abcdef")


class PciDevice(NamedTuple):
    """A PCI function, as the kernel lists it."""

    address: str  #: 0000:07:00.0
    class_code: int | None = None  #: class >> 8: base class and subclass, 0x0302
    vendor: str | None = None  #: vendor, four hex digits
    device: str | None = None  #: device, four hex digits
    path: tuple[str, ...] = ()  #: the host bridge, then the bridges below it, then the device

    @property
    def folder(self) -> str:
        """The device's folder in the tree."""
        return f"{DEVICES}/{self.address}"

    @property
    def base_class(self) -> int | None:
        """The first byte of the device's class."""
        return None if self.class_code is None else self.class_code >> 8

    def as_gpu(self, vendor: str, index: int, **facts: Any) -> Gpu:  # noqa: ANN401 - of Gpu
        """Return the device as a GPU, with the driver's facts; its NUMA node is not looked up."""
        pci_id = f"{self.vendor}:{self.device}" if self.vendor and self.device else None
        return Gpu(index, vendor, self.address, None, pci_id=pci_id, pci_path=self.path, **facts)


def read_devices(tree: Tree, held: Collection[str]) -> tuple[PciDevice, ...]:
    """Read network adapters, displays, accelerators and devices with a GPU driver, in bus order."""
    devices = []
    for address in sorted({*tree.list(DEVICES, is_pci_address), *held}, key=bus_order):
        folder = f"{DEVICES}/{address}"
        code = None
        with suppress(ValueError):
            code = int(tree.read(f"{folder}/class") or "", 16) >> 8
        if address in held or (code is not None and code >> 8 in {NETWORK, DISPLAY, ACCELERATOR}):
            # The end of the folder's link is the device's path:
            # pci0000:17/0000:17:00.0/0000:18:00.0.
            path = (tree.link(folder) or "").split("/")
            while path and not path[0].startswith("pci"):
                del path[0]
            vendor = _pci_id(tree, f"{folder}/vendor")
            device = _pci_id(tree, f"{folder}/device")
            devices.append(PciDevice(address, code, vendor, device, tuple(path)))
    return tuple(devices)


def bus_order(address: str) -> tuple[int, ...]:
    """Return a PCI address as numbers to sort by; a domain may have over four digits."""
    return tuple(int(part, 16) for part in address.replace(".", ":").split(":"))


def is_pci_address(name: str) -> bool:
    """Whether a name is like 0000:07:00.0, with a domain of four digits or more."""
    parts = name.replace(".", ":").split(":")
    has_lengths = parts[0] != "" and [len(part) for part in parts[1:]] == [2, 2, 1]
    return has_lengths and HEX_DIGITS.issuperset("".join(parts))


def _pci_id(tree: Tree, path: str) -> str | None:
    digits = (tree.read(path) or "").removeprefix("0x").lower()
    is_whole = len(digits) == 4  # noqa: PLR2004 - of vendor or device
    return digits if is_whole and HEX_DIGITS.issuperset(digits) else None


#: A NUMA node, and the source that tells it; both None: unknown.
Place = tuple[int | None, str | None]


class NumaLocator(NamedTuple):
    """Finds the NUMA node of devices, on a machine with these nodes and CPUs."""

    tree: Tree
    nodes: Collection[int | None]  #: the numbers of the nodes that exist
    online: CpuSet
    node_of_cpu: Mapping[int, int]  #: online CPU → node of the CPU

    def locate(self, device: PciDevice, nvml_cpus: CpuSet = frozenset()) -> Place:
        """Return a device's node and its source: "numa_node", "NVML", "local_cpulist".

        A `numa_node` counts if that node exists, even without CPUs. Else the first source counts
        whose CPUs are all in one node.
        """
        named = read_number(self.tree, f"{device.folder}/numa_node")
        if named is not None and named in self.nodes:
            return named, "numa_node"
        for source, cpus in self._hints(device, nvml_cpus):
            nodes = {self.node_of_cpu.get(cpu) for cpu in cpus & self.online}
            if len(nodes) == 1 and None not in nodes:
                return nodes.pop(), source
        return None, None

    def _hints(self, device: PciDevice, nvml_cpus: CpuSet) -> Iterator[tuple[str, CpuSet]]:
        """Yield the sources that name CPUs near a device, best first."""
        yield "NVML", nvml_cpus
        for address in (device.address, *device.path[-2:0:-1]):  # then bridges, nearest first
            folder = f"{DEVICES}/{address}"
            cpus = read_cpus(self.tree, f"{folder}/local_cpulist", f"{folder}/local_cpus")
            is_own = address == device.address
            source = "local_cpulist" if is_own else f"local_cpulist of bridge {address}"
            yield source, cpus or frozenset()


#: Entries of an adapter's folder: kinds of interfaces, and a virtual function's link.
KINDS = ("infiniband", "cxi", "net")
PHYSICAL = "physfn"
ADDRESS_DIGITS = 12  #: digits of a hardware address in a name, as in enx001122334455
RDMA = "sys/class/infiniband"
CXI = "sys/class/cxi"


def read_nics(tree: Tree, devices: Sequence[PciDevice], locator: NumaLocator) -> Iterator[Nic]:
    """Yield the network adapters among the devices, in the same order."""
    kinds = {0x0200: "ethernet", 0x0207: "infiniband"}  # by the PCI class's first two bytes
    for device in devices:
        if device.base_class == NETWORK:
            names = tree.list(device.folder, _is_of_interfaces)
            interfaces = tuple(_interfaces(tree, device.folder, names))
            physical = _target(tree, f"{device.folder}/{PHYSICAL}") if PHYSICAL in names else None
            bond = None  # an interface's master may also be a bridge
            for place, name in interfaces:
                master = _target(tree, f"{place}/{name}/master") if place.endswith("/net") else None
                if master and tree.read(f"sys/class/net/{master}/bonding/mode") is not None:
                    bond = bond or master
            node, source = locator.locate(device)
            yield Nic(
                pci_bus_id=device.address,
                numa_node=node,
                kind=kinds.get(device.class_code or 0, "network"),
                names=tuple(printable(name) for _, name in interfaces),
                pci_path=device.path,
                ports=tuple(_ports(tree, device.folder, interfaces, bond)),
                physical=physical,
                bond=bond,
                numa_source=source,
            )


def _is_of_interfaces(name: str) -> bool:
    return name in KINDS or name == PHYSICAL or name.startswith("virtio")


def port_states(tree: Tree) -> tuple[tuple[str, bool], ...]:
    """Return a value that changes when an RDMA device comes or goes, or a port goes up or down."""
    paths = []
    for device in tree.list(RDMA, is_anonymous):
        ports = f"{RDMA}/{device}/ports"
        paths += [f"{ports}/{number}/state" for number in tree.list(ports, _is_number)]
    paths += [f"{CXI}/{name}/device/port/link" for name in tree.list(CXI)]
    return tuple((path, _is_up(tree.read(path))) for path in paths)


def _is_up(state: str | None) -> bool:
    """Whether a port is active: 4 in enum ib_port_state, `up` for a link of Slingshot."""
    return state is not None and state.startswith(("4:", "up"))


def _interfaces(tree: Tree, folder: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each interface's folder and name; a virtual machine has a virtio device in between."""
    for kind in KINDS:
        if kind in names:
            for name in tree.list(f"{folder}/{kind}", is_anonymous):
                yield f"{folder}/{kind}", name
    for name in names:
        if name.startswith("virtio"):
            below = f"{folder}/{name}"
            yield from _interfaces(tree, below, tree.list(below, KINDS.__contains__))


def _ports(
    tree: Tree, folder: str, interfaces: Sequence[tuple[str, str]], bond: str | None
) -> Iterator[RdmaPort]:
    nets = [printable(name) for place, name in interfaces if place.endswith("/net")]
    only = nets[0] if len(nets) == 1 else None
    for place, name in interfaces:
        if place == f"{folder}/infiniband":
            for number in tree.list(f"{place}/{name}/ports", _is_number):
                port = f"{place}/{name}/ports/{number}"
                layer = tree.read(f"{port}/link_layer")
                # The interface is that of the port's first GID, else the only one there is. Only
                # candidates are read: any other name could contain a hardware address.
                candidates = list(nets)
                if bond is not None:
                    candidates.append(bond)
                netdev = None
                if len(candidates) > 1:
                    netdev = tree.read(f"{port}/gid_attrs/ndevs/0", *candidates)
                yield RdmaPort(
                    device=printable(name),
                    number=int(number),
                    is_active=_is_up(tree.read(f"{port}/state")),
                    gbps=_first_number(tree.read(f"{port}/rate") or ""),
                    link_layer=printable(layer) if layer and layer != "Unknown" else None,
                    netdev=printable(netdev) if netdev else only,
                )
        elif place == f"{folder}/cxi":
            yield RdmaPort(
                device=printable(name),
                number=1,
                is_active=_is_up(tree.read(f"{folder}/port/link")),
                gbps=_first_number((tree.read(f"{folder}/port/speed") or "").partition("_")[2]),
                link_layer=SLINGSHOT,
                netdev=only,
            )


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _first_number(text: str) -> int | None:
    """Return the whole number at the start of a text such as `400 Gb/sec (4X NDR)` or `200G`."""
    digits = text[: len(text) - len(text.lstrip("0123456789"))]
    return int(digits) if digits and len(digits) < 10 else None  # noqa: PLR2004 - no rate has ten


def _target(tree: Tree, path: str) -> str | None:
    link = tree.link(path)
    if link is None:
        return None
    return printable(link.rstrip("/").rpartition("/")[2])


def is_anonymous(name: str) -> bool:
    """Whether an interface's name contains no hardware address, which a snapshot must not have."""
    return len(name) < ADDRESS_DIGITS or not HEX_DIGITS.issuperset(name[-ADDRESS_DIGITS:])
