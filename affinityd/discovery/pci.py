"""PCI devices and their NUMA nodes: /sys/bus/pci/devices, only those that a plan needs.

Source: kernel `Documentation/ABI/testing/sysfs-bus-pci` (class, numa_node, local_cpulist,
local_cpus); classes from the PCI Code and ID Assignment Specification.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import dropwhile
from typing import NamedTuple

from affinityd.cpuset import CpuSet
from affinityd.discovery.tree import Tree, read_cpus, read_number
from affinityd.topology.model import BY_NVML, NUMA_NODE, Gpu

DEVICES = "sys/bus/pci/devices"

#: Base classes: the first of a class's three bytes.
NETWORK, DISPLAY, ACCELERATOR = 0x02, 0x03, 0x12

_WANTED = (NETWORK, DISPLAY, ACCELERATOR)

_HEX_DIGITS = "0123456789abcdef"
_ID_DIGITS = 4  #: of a vendor, of a device


class PciDevice(NamedTuple):
    """A PCI function, as the kernel lists it."""

    address: str  #: 0000:07:00.0
    class_code: int | None = None  #: class >> 8: base class and subclass, 0x0302
    vendor: str | None = None  #: vendor, four hex digits
    device: str | None = None  #: device, four hex digits
    path: tuple[str, ...] = ()  #: host bridge first, its parents, itself last

    @property
    def folder(self) -> str:
        """Its folder in the tree."""
        return f"{DEVICES}/{self.address}"

    @property
    def base_class(self) -> int | None:
        """The first byte of its class."""
        return None if self.class_code is None else self.class_code >> 8

    @property
    def pci_id(self) -> str | None:
        """vendor:device, as lspci -n prints it."""
        return f"{self.vendor}:{self.device}" if self.vendor and self.device else None

    def as_gpu(self, vendor: str, index: int) -> Gpu:
        """Return the device as a GPU, with the facts of the bus only."""
        return Gpu(
            index, vendor, self.address, numa_node=None, pci_id=self.pci_id, pci_path=self.path
        )


def read_devices(tree: Tree, held: Collection[str]) -> tuple[PciDevice, ...]:
    """Read the network adapters, displays and accelerators, in bus order.

    And those that a driver holds, of any class, by the addresses in `held`; what the kernel does
    not list has nothing but its address.
    """
    addresses = {*tree.list(DEVICES, is_pci_address), *held}
    devices = ((address, _class_code(tree, address)) for address in addresses)
    wanted = (
        PciDevice(
            address,
            code,
            _hex(tree, address, "vendor"),
            _hex(tree, address, "device"),
            _path(tree.link(f"{DEVICES}/{address}") or ""),
        )
        for address, code in devices
        if address in held or (code is not None and code >> 8 in _WANTED)
    )
    return tuple(sorted(wanted, key=lambda device: bus_order(device.address)))


def bus_order(address: str) -> tuple[int, ...]:
    """Return a PCI address as the numbers it is ordered by; a domain may have over four digits."""
    return tuple(int(part, 16) for part in address.replace(".", ":").split(":"))


def is_pci_address(name: str) -> bool:
    """Whether a name is like 0000:07:00.0, with a domain of four digits or more."""
    parts = name.replace(".", ":").split(":")
    return [len(part) for part in parts[1:]] == [2, 2, 1] and all(
        part and all(digit in _HEX_DIGITS for digit in part) for part in parts
    )


def _class_code(tree: Tree, address: str) -> int | None:
    text = tree.read(f"{DEVICES}/{address}/class") or ""
    try:
        return int(text, 16) >> 8
    except ValueError:
        return None


def _hex(tree: Tree, address: str, name: str) -> str | None:
    """Read a file like `0x10de`."""
    digits = (tree.read(f"{DEVICES}/{address}/{name}") or "").removeprefix("0x").lower()
    is_id = len(digits) == _ID_DIGITS and all(digit in _HEX_DIGITS for digit in digits)
    return digits if is_id else None


def _path(link: str) -> tuple[str, ...]:
    """Return the part of a device's link that is PCI: pci0000:17/0000:17:00.0/0000:18:00.0."""
    return tuple(dropwhile(lambda part: not part.startswith("pci"), link.split("/")))


#: A NUMA node and the source that decided it; both None: unknown.
Place = tuple[int | None, str | None]


class NumaLocator(NamedTuple):
    """Finds devices on a machine of these nodes and CPUs."""

    tree: Tree
    nodes: Collection[int | None]  #: the numbers of the nodes that exist
    online: CpuSet
    node_of_cpu: Mapping[int, int]  #: online CPU → its node

    def locate(self, device: PciDevice, nvml_cpus: CpuSet = frozenset()) -> Place:
        """Return a device's node and its source: NUMA_NODE, BY_NVML, "local_cpulist".

        A `numa_node` decides if that node exists, even without CPUs. Else the first source
        does whose CPUs are all in one node.
        """
        named = read_number(self.tree, f"{device.folder}/numa_node")
        if named is not None and named in self.nodes:
            return named, NUMA_NODE
        hints = ((self._only_node(cpus), source) for source, cpus in self._hints(device, nvml_cpus))
        return next(((node, source) for node, source in hints if node is not None), (None, None))

    def _hints(self, device: PciDevice, nvml_cpus: CpuSet) -> Iterator[tuple[str, CpuSet]]:
        """Yield the sources that name CPUs near a device, best first."""
        yield BY_NVML, nvml_cpus
        yield "local_cpulist", self._local_cpus(device.address)
        for bridge in device.path[-2:0:-1]:
            yield f"local_cpulist of bridge {bridge}", self._local_cpus(bridge)

    def _local_cpus(self, address: str) -> CpuSet:
        folder = f"{DEVICES}/{address}"
        cpus = read_cpus(self.tree, f"{folder}/local_cpulist", f"{folder}/local_cpus")
        return cpus or frozenset()

    def _only_node(self, cpus: CpuSet) -> int | None:
        """Return the node of all these CPUs that are online; None where that is not just one."""
        nodes = {self.node_of_cpu.get(cpu) for cpu in cpus & self.online}
        return nodes.pop() if len(nodes) == 1 else None
